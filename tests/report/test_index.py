"""The page over all runs: a row for each, links to the reports that are there, and the main metric over time."""

import datetime
from pathlib import Path

import pytest
from ml_metadata.metadata_store import MetadataStore
from ml_metadata.proto import metadata_store_pb2

from pipeline.report import index
from pipeline.runs import record, store
from pipeline.settings.config import load_config

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def add(tmp_path):
    """Adds a run to the metadata store below a folder, with a report."""
    config = metadata_store_pb2.ConnectionConfig()
    config.sqlite.filename_uri = str(tmp_path / store.FILE)
    config.sqlite.connection_mode = metadata_store_pb2.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
    metadata = MetadataStore(config)
    kind = metadata.put_context_type(metadata_store_pb2.ContextType(name=record.RUN_CONTEXT))

    def add(name: str, auc: float | None, failed: tuple[str, ...] = ()) -> None:
        metadata.put_contexts([metadata_store_pb2.Context(type_id=kind, name=name)])
        outcome = {"failed": failed, "metrics": {} if auc is None else {"auc": auc, "recall": 0.5}}
        settings = load_config(ROOT / "configs/flights.py")
        now = datetime.datetime.now()
        record.keep(metadata, record.make(name, ["x.py"], settings, now, 3 if failed else 0, outcome, [], None))
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "report.html").write_text("a page")

    return add


@pytest.mark.slow
def test_runs_are_listed_with_links_to_the_reports_that_are_there_and_the_metric_over_time(tmp_path, add, browser):
    add("2026-11-20T10-00-00", 0.70)
    add("2026-11-21T10-00-00", None, ("DataGate failed: <b>bold</b>",))
    add("2026-11-22T10-00-00", 0.71)
    (tmp_path / "runs/2026-11-20T10-00-00/report.html").unlink()
    index.write(tmp_path, store.records(tmp_path))

    page = browser.new_context(offline=True).new_page()
    page.goto((tmp_path / "runs/index.html").as_uri())
    assert page.title() == "flights: runs"
    rows = [row.inner_text().split("\t") for row in page.query_selector_all("section > .table tbody tr")]
    assert [row[0] for row in rows] == ["2026-11-22T10-00-00", "2026-11-21T10-00-00", "2026-11-20T10-00-00"]
    assert rows[0][2:4] == ["0.7100", "0.5000"]
    assert rows[1][1:4] == ["not blessed", "-", "-"]
    assert rows[1][5] == "DataGate failed: <b>bold</b>"
    links = [link.get_attribute("href") for link in page.query_selector_all("section a")]
    assert links == ["2026-11-22T10-00-00/report.html", "2026-11-21T10-00-00/report.html"]
    chart = page.text_content("figure svg")
    assert "AUC" in chart
    assert "floor" in chart
    page.click(f"a[href='{links[0]}']")
    assert page.inner_text("body") == "a page"


def test_one_run_is_no_chart_and_a_folder_without_runs_has_no_page(tmp_path, add):
    add("2026-11-20T10-00-00", 0.70)
    index.write(tmp_path, store.records(tmp_path))
    assert "<svg" not in (tmp_path / "runs/index.html").read_text()
    (tmp_path / "elsewhere").mkdir()
    index.write(tmp_path / "elsewhere", store.records(tmp_path / "elsewhere"))
    assert not any((tmp_path / "elsewhere").iterdir())
