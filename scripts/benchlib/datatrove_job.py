"""The same work by datatrove, two tasks on two workers: `datatrove_job.py PARQUET_FOLDER TOKENIZER OUT`."""

from __future__ import annotations

import sys

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.tokens import DocumentTokenizer


def main(folder: str, tokenizer: str, out: str) -> None:
    """Tokenize every file of the folder."""
    LocalPipelineExecutor(
        pipeline=[
            ParquetReader(folder, text_key="text", glob_pattern="*.parquet"),
            DocumentTokenizer(
                output_folder=f"{out}/tokens",
                local_working_dir=f"{out}/local",
                tokenizer_name_or_path=tokenizer,
                eos_token="<|endoftext|>",
                shuffle_documents=False,
            ),
        ],
        tasks=2,
        workers=2,
        logging_dir=f"{out}/logs",
    ).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
