"""Trains with torchtitan and Stoker's client, in place of torchtitan's own train.py.

    torchrun --nproc_per_node=8 train_torchtitan.py --module llama3 --config llama3_8b --checkpoint.enable

The lines that end with `# stoker` are what Stoker's client needs. Written after the source of
torchtitan's Trainer of 2026; Stoker's tests, which have no GPUs, do not run it.
"""

import torch
import torch.distributed as dist
from stoker_client import Stoker  # stoker
from torchtitan.config import ConfigManager
from torchtitan.tools.logging import init_logger
from torchtitan.trainer import Trainer

stoker = Stoker()  # stoker


class Told(Trainer):  # stoker
    def train_step(self, data_iterator):  # stoker
        super().train_step(data_iterator)  # stoker
        stoker.phase("train", step=self.step)  # stoker
        if self.step % 10 == 0:  # stoker: the ranks ask each other, which waits for the device
            asked = torch.tensor(int(stoker.stop), device=self.device)  # stoker
            dist.all_reduce(asked, dist.ReduceOp.MAX)  # stoker
            if asked.item():  # stoker: this step is the last, and its checkpoint a whole one
                self.checkpointer.last_save_model_only = False  # stoker
                self.config.training.steps = self.step  # stoker


init_logger()
trainer_class = Trainer
trainer_class = Told  # stoker
config = ConfigManager().parse_args()
trainer = trainer_class(config)
trainer.train()
stoker.tell(checkpoint=f"{config.dump_folder}/{config.checkpoint.folder}/step-{trainer.step}")  # stoker
trainer.close()
dist.destroy_process_group()
