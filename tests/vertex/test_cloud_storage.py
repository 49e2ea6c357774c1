"""The fake Cloud Storage keeps to the rules of the service, with Google's client and by HTTP."""

import os
from collections.abc import Iterator

import pytest
import requests
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from tests.fakes.cloud_storage import CHUNK, CloudStorage

CONTENT = os.urandom(CHUNK) + b"\r\n--\n\r"


@pytest.fixture
def there() -> CloudStorage:
    there = CloudStorage()
    there.create_bucket("some-bucket", "us-central1")
    return there


@pytest.fixture
def url(there: CloudStorage) -> Iterator[str]:
    with there.serve() as url:
        yield url


@pytest.fixture
def bucket(url: str) -> storage.Bucket:
    client = storage.Client("demo", AnonymousCredentials(), client_options={"api_endpoint": url})
    return client.bucket("some-bucket")


def test_every_kind_of_upload_keeps_every_byte(bucket: storage.Bucket, there: CloudStorage):
    bucket.blob("at once/é ?#.bin").upload_from_string(CONTENT)
    with bucket.blob("in chunks").open("wb", chunk_size=CHUNK) as file:
        file.write(CONTENT)
    with bucket.blob("empty").open("wb"):
        pass
    assert there.read("gs://some-bucket/at once/é ?#.bin") == there.read("gs://some-bucket/in chunks") == CONTENT
    assert bucket.blob("at once/é ?#.bin").download_as_bytes() == CONTENT
    assert bucket.blob("in chunks").download_as_bytes(start=2, end=5) == CONTENT[2:6]
    assert bucket.blob("empty").download_as_bytes() == b""


def test_a_chunk_that_is_no_multiple_of_256_kib_is_refused_unless_it_is_the_last(url: str):
    begun = requests.post(f"{url}/upload/storage/v1/b/some-bucket/o?uploadType=resumable&name=a", timeout=60)
    session = begun.headers["Location"]

    def put(span: str, content: bytes) -> requests.Response:
        return requests.put(session, content, headers={"Content-Range": span}, timeout=60)

    assert put("bytes 0-9/20", b"0123456789").status_code == 400
    assert put("bytes 10-19/20", b"0123456789").status_code == 400
    assert put("bytes */20", b"").status_code == 308
    whole = put("bytes 0-19/20", b"0123456789" * 2)
    assert (whole.status_code, whole.json()["size"]) == (200, "20")
    assert put("bytes */20", b"").json()["generation"] == whole.json()["generation"]


def test_lists_have_prefixes_and_pages(bucket: storage.Bucket):
    for name in ("a/1", "a/2", "a/b/3", "c"):
        bucket.blob(name).upload_from_string("")
    found = bucket.list_blobs(delimiter="/")
    assert ([blob.name for blob in found], found.prefixes) == (["c"], {"a/"})
    found = bucket.list_blobs(prefix="a/", delimiter="/", page_size=1)
    assert ([blob.name for blob in found], found.prefixes) == (["a/1", "a/2"], {"a/b/"})


def test_an_answer_has_the_fields_asked_for(bucket: storage.Bucket, url: str):
    bucket.blob("a").upload_from_string("x")
    one = f"{url}/storage/v1/b/some-bucket/o/a?fields=size,generation"
    assert requests.get(one, timeout=60).json().keys() == {"size", "generation"}
    several = f"{url}/storage/v1/b/some-bucket/o?fields=items/name,nextPageToken"
    assert requests.get(several, timeout=60).json() == {"items": [{"name": "a"}]}


def test_preconditions_hold(bucket: storage.Bucket):
    blob = bucket.blob("a")
    blob.upload_from_string("1", if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("a").upload_from_string("2", if_generation_match=0)
    blob.upload_from_string("3", if_generation_match=blob.generation)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.delete(if_generation_match=1)
    assert blob.download_as_bytes() == b"3"


def test_objects_are_copied_composed_and_deleted_in_a_batch(bucket: storage.Bucket, there: CloudStorage):
    one = bucket.blob("1")
    one.upload_from_string("1")
    bucket.copy_blob(one, bucket, "2")
    bucket.blob("3").rewrite(one)
    bucket.blob("all").compose([one, bucket.blob("2"), bucket.blob("3")])
    assert there.read("gs://some-bucket/all") == b"111"
    with bucket.client.batch(raise_exception=False) as batch:
        for name in ("1", "2", "none"):
            bucket.delete_blob(name)
    assert [response.status_code for response in batch._responses] == [204, 204, 404]
    assert there.addresses() == ["gs://some-bucket/3", "gs://some-bucket/all"]
    too_many = bucket.client.batch()
    for number in range(101):
        too_many._make_request("DELETE", f"{bucket.path}/o/{number}")
    with pytest.raises(exceptions.BadRequest, match="101 calls; at most 100"):
        too_many.finish()


def test_what_is_missing_is_said_in_the_form_of_each_api(bucket: storage.Bucket, url: str):
    assert bucket.get_blob("none") is None
    answer = requests.get(f"{url}/storage/v1/b/some-bucket/o/none", timeout=60)
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, "No such object: some-bucket/none")
    xml = requests.get(f"{url}/some-bucket/none", timeout=60)
    assert (xml.status_code, "<Code>NoSuchKey</Code>" in xml.text) == (404, True)
    unencoded = requests.get(f"{url}/storage/v1/b/some-bucket/o/a/b", timeout=60)
    assert unencoded.status_code == 501
    no_bucket = requests.get(f"{url}/storage/v1/b/other-bucket/o", timeout=60)
    assert (no_bucket.status_code, no_bucket.json()["error"]["message"]) == (
        404,
        "The specified bucket does not exist.",
    )
    nothing_left = requests.get(f"{url}/some-bucket/none", headers={"Range": "bytes=0-9"}, timeout=60)
    assert nothing_left.status_code == 404


@pytest.mark.parametrize("name", ["", ".", "..", "a\nb", "x" * 1025, ".well-known/acme-challenge/x"])
def test_what_is_no_name_of_an_object_is_refused(url: str, name: str):
    answer = requests.post(
        f"{url}/upload/storage/v1/b/some-bucket/o", params={"uploadType": "media", "name": name}, timeout=60
    )
    assert answer.status_code == 400


def test_a_wrong_checksum_is_refused(bucket: storage.Bucket):
    blob = bucket.blob("a")
    blob.md5_hash = "AAAA"
    with pytest.raises(exceptions.BadRequest, match="doesn't match calculated md5Hash"):
        blob.upload_from_string("a")


def test_requests_need_the_token_and_the_role_of_tasks_does_not_read_buckets():
    there = CloudStorage("right", bucket_reader=False)
    there.create_bucket("some-bucket")
    with there.serve() as url:

        def code(path: str, token: str) -> int:
            return requests.get(f"{url}{path}", headers={"Authorization": f"Bearer {token}"}, timeout=60).status_code

        assert code("/storage/v1/b/some-bucket/o", "right") == 200
        assert code("/storage/v1/b/some-bucket/o", "wrong") == 401
        assert code("/storage/v1/b/some-bucket", "right") == 403


def test_an_object_that_is_written_again_within_a_second_is_refused_where_the_test_wants_it():
    there = CloudStorage(throttles=True)
    there.create_bucket("some-bucket")
    with there.serve() as url:
        address = f"{url}/upload/storage/v1/b/some-bucket/o?uploadType=media&name="
        codes = [requests.post(f"{address}{name}", b"x", timeout=60).status_code for name in ("a", "a", "b")]
    assert (codes, dict(there.hurried)) == ([200, 429, 200], {"gs://some-bucket/a": 1})
