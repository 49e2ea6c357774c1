"""The bill on the page of a run on Vertex AI; the page of a run here has none."""

from dataclasses import replace

import pandas as pd
import pytest

from pipeline.costs.estimate import Bill, Line, to_dict
from pipeline.report import page

pytestmark = pytest.mark.slow  # TensorFlow Data Validation


def test_the_page_of_a_run_with_a_bill_has_its_lines_and_what_is_not_in_it(described) -> None:
    run = described({"train": pd.DataFrame({"a": [1, 2]})})
    assert "Costs" not in page.write(run).read_text(encoding="utf-8")
    lines = (
        Line("Trainer", "task", "e2-standard-2", 1800.0, 0.05),
        Line("Trainer", "job", "<b>2</b> x large", 1800.0, 5.0),
    )
    bill = Bill(lines, 0.03, ("the workers of Dataflow are not in it",), "2026-01-01")
    html = page.write(replace(run, record=replace(run.record, cost=to_dict(bill)))).read_text(encoding="utf-8")
    assert "Trainer, its job" in html
    assert "&lt;b&gt;2&lt;/b&gt; x large" in html
    assert "$5.08" in html
    assert "Not in the sum: the workers of Dataflow are not in it." in html
    assert "discounts, taxes and other currencies are left out. Prices of 2026-01-01" in html
