"""The library's logger."""

import logging

log = logging.getLogger("isentrope")
