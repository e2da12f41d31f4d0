"""The held-out prompts of the probe are in the record, as a file of prompts."""

import json

from isentrope import EntropyProbe, Prompt
from isentrope.sampling.tasks.prompt_file import PromptFile
from isentrope.system.files import MANIFEST
from tests.probe import following

SAVING = {"save_strategy": "steps"}


def test_a_record_keeps_the_held_out_prompts_with_what_rewards_read(tmp_path):
    columns = {"answer": "3", "unwritable": object(), "response_mask": [1]}
    prompts = [
        "1+2=",
        Prompt("named", text="5+4=", reference="9", columns=columns),
        [{"role": "user", "content": "2+2="}],
        Prompt("own", messages=({"role": "user", "content": "1"},), template={"twice": True}),
        [4, 5, 6],
    ]
    made = following.grpo(tmp_path, 2, **SAVING)
    made.processing_class.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}="
    EntropyProbe(prompts, every=99, size=8, record=True).attach(made)
    following.run(made)
    record = tmp_path / "out" / "checkpoint-1" / "next_update"
    assert "held_out.jsonl" in (record / MANIFEST).read_text()
    text, named, chat, own, ids = PromptFile(record / "held_out.jsonl").prompts
    encode = made.processing_class
    assert (text.text, named.key, named.text, named.reference) == ("1+2=", "named", "5+4=", "9")
    assert named.columns["answer"] == "3"
    assert not {"unwritable", "response_mask"} & named.columns.keys()
    assert json.loads(json.dumps(chat.messages)) == prompts[2]
    assert list(own.token_ids) == encode("1=", add_special_tokens=False)["input_ids"]
    assert ids.token_ids == (4, 5, 6)
