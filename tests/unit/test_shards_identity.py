"""What a build id stands for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stoker.shards.format.identity import BuildParameters, Filters, build_id, dtype_for, set_key
from stoker.shards.format.steps import STEPS
from stoker.store.errors import DataError

PARAMETERS = BuildParameters(
    tokenizer_sha256="a" * 64,
    vocab_size=32000,
    eot=0,
    text_column="text",
    filters=Filters(min_chars=80, languages=("de", "en"), at_least={"language_score": 0.65}),
    val_ratio=0.005,
    shard_tokens=100_000_000,
)


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer_sha256": "b" * 64},
        {"vocab_size": 32001},
        {"eot": 1},
        {"text_column": "content"},
        {"filters": Filters(min_chars=81, languages=("de", "en"), at_least={"language_score": 0.65})},
        {"filters": Filters(min_chars=80, languages=("en",), at_least={"language_score": 0.65})},
        {"filters": Filters(min_chars=80, languages=("de", "en"), at_least={"language_score": 0.66})},
        {
            "filters": Filters(
                min_chars=80, max_chars=9, languages=("de", "en"), at_least={"language_score": 0.65}
            )
        },
        {"val_ratio": 0.006},
        {"shard_tokens": 99},
        {"val_salt": 1},
        {"format_version": 3},
    ],
)
def test_every_parameter_that_changes_bytes_changes_the_build_id(change: dict[str, object]) -> None:
    assert build_id(replace(PARAMETERS, **change)) != build_id(PARAMETERS)  # type: ignore[arg-type]


def test_the_order_in_which_filters_are_written_changes_nothing() -> None:
    one = Filters.from_mapping({"languages": ["en", "de", "en"], "at_least": {"b": 1, "a": 0.5}})
    other = Filters.from_mapping(
        {"languages": ["de", "en"], "at_least": {"a": 0.5, "b": 1.0}, "min_chars": None}
    )
    assert build_id(replace(PARAMETERS, filters=one)) == build_id(replace(PARAMETERS, filters=other))


def test_a_steps_version_is_in_the_build_id_and_sets_of_another_one_are_not_gone_on_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, written = build_id(PARAMETERS), PARAMETERS.to_mapping()
    monkeypatch.setitem(STEPS, "max_chars", STEPS["max_chars"]._replace(version=2))
    assert build_id(PARAMETERS) == first, "it is off"
    monkeypatch.setitem(STEPS, "min_chars", STEPS["min_chars"]._replace(version=2))
    assert build_id(PARAMETERS) != first
    assert BuildParameters.from_mapping(PARAMETERS.to_mapping()) == PARAMETERS
    with pytest.raises(DataError, match=r"this Stoker has \{'min_chars': 2\}.*raise dataset\.version"):
        BuildParameters.from_mapping(written)
    with pytest.raises(DataError, match="no step is called min_words"):
        BuildParameters.from_mapping({**written, "filters": {"min_words": 3}})


def test_parameters_survive_the_way_through_a_record() -> None:
    again = BuildParameters.from_mapping(PARAMETERS.to_mapping())
    assert again == PARAMETERS
    assert build_id(again) == build_id(PARAMETERS)


def test_parameters_of_another_format_version_are_refused_with_a_way_out() -> None:
    with pytest.raises(DataError, match=r"raise dataset\.version"):
        BuildParameters.from_mapping({**PARAMETERS.to_mapping(), "format_version": 1})


@pytest.mark.parametrize("damage", [{"unknown": 1}, {"val_ratio": "much"}, {"filters": None}])
def test_parameters_that_make_no_sense_are_data_errors(damage: dict[str, object]) -> None:
    with pytest.raises(DataError):
        BuildParameters.from_mapping({**PARAMETERS.to_mapping(), **damage})


def test_a_key_depends_on_the_content_and_on_the_build() -> None:
    keys = {set_key(content * 64, build * 64) for content in "ab" for build in "ab"}
    assert len(keys) == 4
    assert all(len(key) == 64 for key in keys)


def test_tokens_take_two_bytes_up_to_65536_ids() -> None:
    assert (dtype_for(65_536), dtype_for(65_537)) == ("uint16", "uint32")
