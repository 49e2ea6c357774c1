"""Names of columns that break programs."""

from tests.gauntlet.tables.table import Content, named, table


@table("class", "two")
def names_keywords() -> Content:
    """Python's keywords, also as the label."""
    return named(["def", "None", "import", "lambda", "True", "for", "is", "print", "self"], "class")


@table("label", "two", tuning=True)
def names_arguments() -> Content:
    """Names that the pipeline uses itself; tuner on."""
    names = ["examples", "predict", "numbers", "missing", "inputs", "instances", "probability", "self", "training"]
    more = [
        "features",
        "probabilities",
        "prediction",
        "serving_default",
        "weights",
        "model",
        "index",
        "outputs",
        "name",
    ]
    return named([*names, *more], "label", rows=1500)


@table("prediction", "number", reach=0.5)
def names_answers() -> Content:
    """A number called prediction, from columns called label and probabilities."""
    return named(["label", "probabilities", "probability", "key", "input"], "prediction", None)


@table("a:b", "two")
def names_signs() -> Content:
    """Names that differ by a sign only."""
    return named(["a b", "a_b", "a-b", "a.b", "a/b", "a+b"], "a:b", [0, 1])


@table("aGe", "two")
def names_case() -> Content:
    """Names that differ by case only, the label too."""
    return named(["age", "Age", "AGE", "agE"], "aGe")


@table("结果", "several", reach=0.6)
def names_unicode() -> Content:
    """Names and classes in other scripts; two names that differ by normal form only."""
    return named(
        ["größe", "年齢", "naïve café", "caf\u00e9", "cafe\u0301", "возраст", "عمر"], "结果", ["低", "中", "高"]
    )


@table('"""', "two")
def names_quotes() -> Content:
    """Quotes and backslashes; the label is called by three quotes."""
    return named(["it's", 'say "hi"', "back\\slash", "\\n", "'''", "ends with \\", "\\N{DASH}"], '"""')


@table("🎯", "number", reach=0.5)
def names_emoji() -> Content:
    """Emoji, one of several code points."""
    return named(["😀", "👩‍👩‍👧", "❤️", "❤"], "🎯", None)


@table("c" * 200, "two")
def names_long() -> Content:
    """200 characters; two names differ in the last only."""
    return named(["a" * 199 + "1", "a" * 199 + "2", "b " * 100], "c" * 200)


@table("0", "two")
def names_digits() -> Content:
    """A leading digit, a number, leading and trailing spaces; the label is called 0."""
    return named(["1st", "2", "3.5", " leading", "trailing ", "-1", "1e5", "_", "__x__"], "0")


@table("100%", "two")
def names_symbols() -> Content:
    """Slash, percent, dollar, braces, commas, brackets."""
    names = [
        "a/b",
        "50%",
        "$cost",
        "{x}",
        "{}",
        "{{y}}",
        "%s",
        "#",
        "@me",
        "a,b",
        "a;b",
        "..",
        "/",
        "<b>",
        "a=b",
        "[0]",
    ]
    return named(names, "100%", rows=1500)


@table("is\nit", "two")
def names_newline() -> Content:
    """A newline inside quoted names, the label's too."""
    return named(["two\nlines", "tab\there", "plain"], "is\nit")
