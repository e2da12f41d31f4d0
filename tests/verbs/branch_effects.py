"""What each setting of a branch must do: change its steps or its files, or be refused by name.

An entry is (other settings of both branches, another value). `STEPS` change the lines of the log
after the parent's, or the weights at the end; `FILES` the names in the folder; `PARTS` no number,
or one only where the alarm is raised: what they set in the trainer is looked at.
"""

from tests.control.examples import STARE

PROBED = ("entropy_probe.enabled=true", "entropy_probe.every=1")
NOISY = ("noise_scale.enabled=true", "training.micro_batch=8", "training.steps=7")
HELD = ("control.name=budget", "control.target.kind=value", "control.target.value=0.5")
FREE = (*HELD, "control.feedback.limit=10.0")
LINEAR = (*HELD[:1], "control.target.kind=linear", "control.target.to=0.1")
WARMING = ("trainer.lr_scheduler_type=constant_with_warmup",)
TWICE = ("trainer.num_iterations=2", "training.learning_rate=0.3")
PAIRS = ("training.group_size=2", "training.micro_batch=4", "sampling.max_new_tokens=12")
CLIPPED = (*TWICE, "trainer.loss_type=dapo")

STEPS = {
    "sampling.temperature": ((), "0.7"),
    "sampling.max_new_tokens": ((), "2"),
    "training.steps": ((), "3"),
    "training.learning_rate": ((), "2e-2"),
    "training.prompts_per_step": ((), "8"),
    "training.group_size": ((), "4"),
    "training.micro_batch": (("noise_scale.enabled=true",), "8"),
    "training.normaliser": (PAIRS, "longest"),
    "training.max_grad_norm": ((), "1e-3"),
    "training.repeat": ((), "1"),
    "entropy_probe.enabled": ((), "true"),
    "entropy_probe.every": (PROBED, "2"),
    "entropy_probe.log_every": ((*PROBED[:1], "entropy_probe.every=3", "training.steps=7"), "1"),
    "entropy_probe.size": (PROBED, "6"),
    "entropy_probe.functional": (PROBED, "per_sequence"),
    "entropy_probe.method": (PROBED, "sequence"),
    "entropy_probe.second_order": (PROBED, "true"),
    "entropy_probe.fresh": (PROBED, "true"),
    "entropy_probe.preconditioning": (PROBED, "previous_step"),
    "entropy_probe.decay": (PROBED, "0.5"),
    "entropy_probe.price": (PROBED, "false"),
    "entropy_probe.position_pattern": (PROBED, "^"),
    "alarm.enabled": (PROBED, "false"),
    "noise_scale.enabled": (NOISY[1:], "true"),
    "noise_scale.decay": (NOISY, "0.5"),
    "control.name": ((), "clip_cov"),
    "control.strength": (("control.name=clip_cov",), "0.01"),
    "control.target.kind": (("control.name=budget",), "hold"),
    "control.target.value": (HELD, "0.6"),
    "control.target.to": ((*LINEAR, "control.target.steps=2"), "0.2"),
    "control.target.steps": ((*LINEAR, "control.target.steps=2"), "4"),
    "control.feedback.proportional": (FREE, "0.02"),
    "control.feedback.integral": (FREE, "0.1"),
    "control.feedback.limit": (HELD, "0.001"),
    "control.options": ((f"control.name={STARE}",), "{share: 0.9}"),
    "trainer.lr_scheduler_type": ((), "cosine"),
    "trainer.lr_scheduler_kwargs": (("trainer.lr_scheduler_type=polynomial",), "{power: 3.0}"),
    "trainer.warmup_steps": (WARMING, "8"),
    "trainer.weight_decay": ((), "0.3"),
    "trainer.adam_beta1": ((), "0.5"),
    "trainer.adam_beta2": ((), "0.9"),
    "trainer.adam_epsilon": ((), "1e-2"),
    "trainer.loss_type": ((), "grpo"),
    "trainer.scale_rewards": ((), "group"),
    "trainer.num_iterations": (("training.save_every=2",), "2"),
    "trainer.epsilon": (CLIPPED, "1e-4"),
    "trainer.epsilon_high": (CLIPPED, "1e-4"),
    "trainer.delta": (TWICE, "1.00001"),
    "trainer.importance_sampling_level": (TWICE, "sequence"),
    "trainer.bf16": ((), "true"),
    "trainer.beta": ((), "0.5"),
    "trainer.entropy_coef": ((), "0.5"),
    "trainer.top_entropy_quantile": ((), "0.2"),
}
FILES = {
    "training.save_every": ((), "1"),
    "training.keep_last": (("training.save_every=1",), "1"),
    "training.keep_every": (("training.save_every=1", "training.keep_last=1"), "3"),
    "output.report_to": ((), "[tensorboard]"),
    "output.rollouts_every": ((), "2"),
}
PARTS = {
    "sampling.batch_size": ((), "3"),
    "alarm.false_alarms": (PROBED, "0.2"),
    "alarm.half_life": (PROBED, "7"),
    "alarm.stop": (PROBED, "true"),
    "output.log_level": ((), "ERROR"),
}
REFUSED = {
    "training.redraw_limit": ((*PAIRS[:2], "sampling.batch_size=1"), "0", "After 0 redraws"),
    "output.directory": ((), "parent", "holds a run"),
    "training.steps": ((), "2", r"training\.steps=2 is no later than step 2"),
    "trainer.num_iterations": ((), "3", r"trainer\.num_iterations=3 cannot begin at step 2"),
    "trainer.fp16": ((), "true", r"trainer\.fp16 cannot change in a branch"),
}
