"""`isentrope view` on the command line; `reports.live` builds the page."""

import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from typer import Option

from isentrope.commands.command import Conclusion, Verified
from isentrope.commands.report import Reported

PAUSE = 0.5
"""Seconds between two looks at what there is to do."""


@dataclass(frozen=True, kw_only=True)
class ViewCommand(Reported, Verified):
    """Show the report in a browser, anew whenever the run goes on."""

    name = "view"
    kept = "Nothing was written."

    port: Annotated[
        int, Option(metavar="PORT", min=0, max=65535, help="Of 127.0.0.1; 0 for any free one.")
    ] = 0
    open_browser: Annotated[bool, Option("--open", help="Open the page in the browser.")] = False

    def run(self) -> Any:
        """Serve the page until Ctrl-C.

        Returns:
            The address, where nothing is served any more.

        Raises:
            KeyboardInterrupt: If another signal ends it.
        """
        from isentrope.reports.live import LivePage
        from isentrope.reports.serve import serving
        from isentrope.system.progress import progress

        page = LivePage(
            self.run_folders, checkpoint=self.checkpoint, evaluations=self.evaluations or ()
        )
        with serving(page, self.port) as address:
            sys.stdout.write(f"{address} shows {', '.join(self.run_folders)}. Ctrl-C ends it.\n")
            sys.stdout.flush()
            progress().end_lines()
            if self.open_browser:
                import webbrowser

                webbrowser.open(address)
            try:
                while True:
                    page.refresh()
                    time.sleep(PAUSE)
            except KeyboardInterrupt as error:
                if error.args not in ((), (signal.SIGINT,)):
                    raise
        return address

    def shown(self, outcome: Any) -> Iterator[Any]:
        """That it has ended."""
        yield Conclusion(f"Ended {outcome}")
