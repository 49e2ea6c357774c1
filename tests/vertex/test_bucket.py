"""A step that reads from and writes to a bucket."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
from tfx.types import standard_artifacts

from pipeline.components.arrow_example_gen import ExampleGenExecutor
from pipeline.components.example_gen import create_example_gen
from pipeline.settings.config import PipelineConfig
from pipeline.settings.target import Target
from tests.fakes.google_cloud import BUCKET, GoogleCloud


@pytest.mark.slow
def test_example_gen_reads_a_bucket_and_writes_whole_files_to_it(
    config: PipelineConfig, few_flights: Path, there: GoogleCloud, tmp_path: Path
):
    bucket = there.storage.bucket(BUCKET)
    for file in sorted(few_flights.glob("*/*.parquet")):
        bucket.blob(f"rows/{file.relative_to(few_flights)}").upload_from_filename(str(file))
    config = replace(config, data=replace(config.data, path=f"gs://{BUCKET}/rows"))
    target = Target.local(tmp_path, "flights")
    example_gen = create_example_gen(config, target)

    def write(uri: str) -> None:
        examples = standard_artifacts.Examples()
        examples.uri = uri
        context = BaseBeamExecutor.Context(beam_pipeline_args=list(target.beam_args))
        ExampleGenExecutor(context).Do({}, {"examples": [examples]}, example_gen.exec_properties)
        assert examples.split_names == '["train", "eval", "test"]'

    write(f"gs://{BUCKET}/examples")
    local = tmp_path / "examples"
    write(str(local))
    in_bucket = {blob.name: blob.download_as_bytes() for blob in bucket.list_blobs(prefix="examples/")}
    on_disk = {
        str(file.relative_to(tmp_path)): file.read_bytes() for file in sorted(local.rglob("*")) if file.is_file()
    }
    assert json.loads(in_bucket.pop("examples/summary.json")) == json.loads(on_disk.pop("examples/summary.json"))
    assert in_bucket == on_disk


@pytest.mark.slow
def test_spans_in_a_bucket_are_kept_there_and_taken_again(
    config: PipelineConfig, few_flights: Path, there: GoogleCloud, tmp_path: Path
):
    bucket = there.storage.bucket(BUCKET)
    data = replace(config.data, path=f"gs://{BUCKET}/rows", splits={}, files="span-{SPAN}/*.parquet", last_spans=2)
    target = replace(Target.local(tmp_path, "flights"), pipeline_root=f"gs://{BUCKET}/root")
    kept = f"{target.pipeline_root}/_kept/flights"

    def write(number: int) -> dict[str, bytes]:
        months = sorted(few_flights.glob("*/*.parquet"))
        bucket.blob(f"rows/span-{number}/flights.parquet").upload_from_filename(str(months[number]))
        examples = standard_artifacts.Examples()
        examples.uri = f"gs://{BUCKET}/examples/{number}"
        context = BaseBeamExecutor.Context(beam_pipeline_args=list(target.beam_args))
        example_gen = create_example_gen(replace(config, data=data), target, kept)
        ExampleGenExecutor(context).Do({}, {"examples": [examples]}, example_gen.exec_properties)
        return {
            blob.name.partition(f"/{number}/")[2]: blob.download_as_bytes()
            for blob in bucket.list_blobs(prefix=f"examples/{number}/Split-")
        }

    def scanned() -> set[tuple[str, int]]:
        return {(blob.name, blob.generation) for blob in bucket.list_blobs(prefix="root/_kept/flights/scans/")}

    write(1)
    before, known = write(2), scanned()
    after = write(3)
    of_second = {name: content for name, content in before.items() if "span-00000000000000000002_" in name}
    assert len(of_second) == 3
    assert of_second.items() <= after.items()
    assert known < scanned()  # those of the second span were not written again
