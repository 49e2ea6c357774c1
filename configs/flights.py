"""Will a flight out of New York arrive 15 or more minutes late? The default pipeline."""

from pipeline.config import (
    Data,
    Evaluation,
    FairnessGate,
    Gate,
    Label,
    PipelineConfig,
    SliceGate,
    Training,
    Tuning,
)

CONFIG = PipelineConfig(
    name="flights",
    data=Data(
        path="data/flights",
        splits={"train": "train/*.parquet", "eval": "eval/*.parquet", "test": "test/*.parquet"},
        prepare="data/prepare_flights.py",
    ),
    label=Label("late", classes=("on time", "late")),
    schema="schema/flights/schema.pbtxt",
    module="models/flights.py",
    tuning=Tuning(trials=4, epochs=3),
    training=Training(epochs=3, batch_size=2048, members="both"),
    evaluation=Evaluation(
        gates=(
            Gate("auc", floor=0.67),
            SliceGate("auc", by="carrier", floor=0.6),
            FairnessGate("auc", by="origin", max_gap=0.1),
        ),
        slices=("origin", "carrier"),
        threshold=0.3,
    ),
)
