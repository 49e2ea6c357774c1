"""Headers and files, most of which are refused."""

import io
import zipfile

from tests.gauntlet.tables.table import Content, labelled, table


@table("wanted", expected="refused: (?i)name|header")
def header_empty() -> Content:
    """An empty name, as pandas writes its index."""
    return labelled(["lost", "won"]).to_csv().encode()


@table("wanted", expected="refused: age")
def header_twice() -> Content:
    """Two columns of one name."""
    return labelled(["lost", "won"]).rename(columns={"height": "age"}).to_csv(index=False).encode()


@table("churned", expected="refused: churn_flag|churnd")
def label_absent() -> Content:
    """A label that is not there; the sentence names the nearest."""
    return labelled(["lost", "won"]).rename(columns={"wanted": "churnd"})


@table("wanted", expected="refused: (?i)header|wanted")
def header_missing() -> Content:
    """No header at all."""
    return labelled(["lost", "won"]).to_csv(index=False, header=False).encode()


@table("wanted", file="{name}.xlsx", expected="refused: CSV")
def spreadsheet() -> Content:
    """A workbook of Excel."""
    book = io.BytesIO()
    with zipfile.ZipFile(book, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("xl/workbook.xml", "<workbook/>")
    return book.getvalue()


@table("wanted", expected="refused: (?i)csv|excel|xlsx|zip")
def spreadsheet_renamed() -> Content:
    """A workbook that somebody renamed to .csv."""
    return spreadsheet()


@table("wanted", expected="pushed or refused: (?i)comma|semicolon|;")
def semicolons() -> Content:
    """Semicolons, as Excel writes in half of Europe."""
    return labelled(["lost", "won"]).to_csv(index=False, sep=";", decimal=",").encode()


@table("wanted", file="{name}.tsv", expected="pushed or refused: (?i)comma|tab|csv")
def tabs() -> Content:
    """Tabs, with the ending .tsv."""
    return labelled(["lost", "won"]).to_csv(index=False, sep="\t").encode()


@table("wanted", expected="refused: UTF-8")
def latin_1() -> Content:
    """Bytes of Latin-1."""
    frame = labelled(["lost", "won"])
    return frame.assign(region=frame["region"].replace("south", "süd")).to_csv(index=False).encode("latin-1")


@table("wanted", file="my data/ünï 'q' (1).csv")
def bom_and_crlf() -> Content:
    """A byte-order mark and Windows line ends, in a path with spaces, quotes and umlauts."""
    return labelled(["lost", "won"]).to_csv(index=False, lineterminator="\r\n").encode("utf-8-sig")


@table("wanted", expected="refused: .")
def header_only() -> Content:
    """A header without rows."""
    return b"height,age,wanted\n"


@table("wanted", expected="refused: .")
def empty_file() -> Content:
    """No bytes at all."""
    return b""


@table("wanted", expected="refused: column")
def only_a_label() -> Content:
    """One column."""
    return labelled(["lost", "won"])[["wanted"]]


@table("wanted", expected="refused: rows")
def few_rows() -> Content:
    """30 rows."""
    return labelled(["lost", "won"], rows=30)
