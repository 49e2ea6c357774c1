"""Read the digit that an image shows: scikit-learn's 1,797 handwritten digits, as PNG files of 8 x 8 pixels."""

from pipeline.config import Data, Evaluation, Gate, HashSplit, Images, Label, PipelineConfig, Training, Tuning

CONFIG = PipelineConfig(
    name="digits",
    data=Data(
        "data/digits",  # a folder for each class
        split_by=HashSplit(shares={"train": 6, "eval": 2, "test": 2}),
        prepare="data/prepare_digits.py",
        images=Images(),
    ),
    label=Label("digit", classes=("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")),
    schema="schema/digits/schema.pbtxt",
    module="models/digits.py",
    tuning=Tuning(mode="off"),
    training=Training(epochs=60, batch_size=32, patience=20),
    evaluation=Evaluation(
        # scikit-learn's best SVC comes to 0.986 on these splits: python benchmarks/digits.py.
        gates=(Gate("accuracy", floor=0.98, max_drop=0.02),),
    ),
)
