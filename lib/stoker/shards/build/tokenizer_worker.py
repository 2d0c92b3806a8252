"""Worker that makes the dataset's tokenizer: `python -m stoker.shards.build.tokenizer_worker`.

Task to train: {"files": [parquet in listing order], "sha256": [of each], "text_column", "vocab_size",
"train_bytes", "target"}; messages {"kind": "progress", "percent": of the text that was read, 100 at its end}.
Task to take over a given tokenizer: {"file", "target"}. Result: sha256, vocab_size and eot of the file at the
target; after training also `trained_on` (the files whose text was used) and `text_bytes`. Where a file does
not decode, the result is {"bad": [{file, reason, row_group, column, detail}]} and no tokenizer is made:
without that text it would be a different one. The result is {"changed": [files]}, without a tokenizer, where
a file no longer has the staged content (it may be linked from a source that is written to).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.kit.workers.child import Report, run_worker
from stoker.shards.format.thread_limits import one_thread
from stoker.shards.tokenize.tokenizer import examine_tokenizer, train_tokenizer
from stoker.store.errors import DataError
from stoker.store.files import make_dir, write_atomic


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Trains the tokenizer, or checks the given file, and writes it to the target."""
    one_thread()
    if "file" in task:
        return _freeze(Path(task["file"]).read_bytes(), str(task["file"]), Path(task["target"]))
    from stoker.corpus.readers.finding import BadFile  # noqa: PLC0415 - heavy, and not for a given tokenizer

    text = TrainingText(task["files"], task["text_column"], int(task["train_bytes"]), report)
    try:
        data = train_tokenizer(text.batches(), int(task["vocab_size"]))
    except BadFile as error:
        bad = text.used[-1]
        if changed := _changed([bad], task, report):
            return {"changed": changed}
        return {"bad": [{"file": bad, **error.finding.fields()}]}
    if not text.text_bytes:
        raise DataError("no text to train a tokenizer on: every row of the files given is null or empty")
    if changed := _changed(text.used, task, report):
        return {"changed": changed}
    frozen = _freeze(data, "the tokenizer just trained", Path(task["target"]))
    return {**frozen, "trained_on": text.used, "text_bytes": text.text_bytes}


def _changed(files: list[str], task: dict[str, Any], report: Report) -> list[str]:
    from stoker.shards.build.publish import still_staged  # noqa: PLC0415 - see above

    staged = dict(zip(task["files"], task["sha256"], strict=True))
    return [file for file in files if not still_staged(Path(file), staged[file], report)]


def _freeze(data: bytes, where: str, target: Path) -> dict[str, Any]:
    tokenizer = examine_tokenizer(data, where)
    make_dir(target.parent)
    write_atomic(target, data)
    return {"sha256": tokenizer.sha256, "vocab_size": tokenizer.vocab_size, "eot": tokenizer.eot}


class TrainingText:
    """The first `train_bytes` bytes of text of the files in order, without null rows."""

    def __init__(self, files: list[str], text_column: str, train_bytes: int, report: Report) -> None:
        self.used: list[str] = []
        self.text_bytes = 0
        self._files, self._text_column = files, text_column
        self._train_bytes, self._report = train_bytes, report

    def batches(self) -> Iterator[list[str]]:
        """Yields batches of texts; raises BadFile about the file that is last in `used`."""
        from stoker.corpus.readers.reader import reader_of  # noqa: PLC0415 - see above

        shown = -1
        for file in self._files:
            self.used.append(file)
            for batch in reader_of(Path(file)).open_rows(Path(file), self._text_column).batches():
                percent = min(99, 100 * self.text_bytes // self._train_bytes)
                if percent > shown:
                    shown = percent
                    self._report("progress", percent=percent)
                yield self._first([text for text in batch.texts if text is not None])
                if self.text_bytes >= self._train_bytes:
                    break
            if self.text_bytes >= self._train_bytes:
                break
        self._report("progress", percent=100)

    def _first(self, texts: list[str]) -> list[str]:
        """Returns as many texts as reach train_bytes: the ends of batches make no difference."""
        for count, text in enumerate(texts, 1):
            self.text_bytes += len(text.encode())
            if self.text_bytes >= self._train_bytes:
                return texts[:count]
        return texts


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
