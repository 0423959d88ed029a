"""Uses an S3 endpoint as a program with boto3 does, and a mount of the same bucket beside it.

Arguments: endpoint, origin, bucket, mount. Credentials come from the environment: those of the
endpoint by the usual names, the origin's as ORIGIN_ACCESS and ORIGIN_SECRET.
"""

import concurrent.futures
import hashlib
import io
import os
import sys
import urllib.error
import urllib.request

import boto3
import botocore.exceptions
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

endpoint, origin, bucket, mount = sys.argv[1:5]
style = Config(signature_version="s3v4", s3={"addressing_style": "path"}, retries={"max_attempts": 1})
s3 = boto3.client("s3", endpoint_url=endpoint, config=style)
there = boto3.client("s3", endpoint_url=origin, config=style, aws_access_key_id=os.environ["ORIGIN_ACCESS"],
                     aws_secret_access_key=os.environ["ORIGIN_SECRET"])
wrong = []


def check(fact, *what):
    if not fact:
        wrong.append(" ".join(map(str, what)))


def code(do):
    """The code and status of the error that do raises; nothing if it does not."""
    try:
        do()
    except botocore.exceptions.ClientError as e:
        return e.response["Error"]["Code"], e.response["ResponseMetadata"]["HTTPStatusCode"]
    return None


def data(n, seed):
    block = hashlib.sha256(str(seed).encode()).digest()
    return (block * (n // len(block) + 1))[:n]


def read(key):
    with open(os.path.join(mount, key), "rb") as f:
        return f.read()


def fetch(what):
    """The status and body of an answer, whatever it is."""
    try:
        with urllib.request.urlopen(what) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as e:
        return e.code, e.read()


def put_get_delete():
    for i, (key, n) in enumerate([("new/a.bin", 100_000), ("new/a+b c%2F.bin", 10), ("new/\u00e4\u65e5.bin", 5_000_000), ("new/empty", 0)]):
        body = data(n, i)
        s3.put_object(Bucket=bucket, Key=key, Body=body, ContentType="image/x-test", Metadata={"kind": "Test"}, CacheControl="no-store")
        check(read(key.replace("%2F", "%252F")) == body, "the mount does not have", key)
        for turn in range(2):
            got = s3.get_object(Bucket=bucket, Key=key)
            check(got["Body"].read() == body, "GET", key, turn)
            check(got["ContentType"] == "image/x-test" and got["Metadata"] == {"kind": "Test"} and got["CacheControl"] == "no-store", "headers of", key, got)
        head, want = s3.head_object(Bucket=bucket, Key=key), there.head_object(Bucket=bucket, Key=key)
        for name in ("ETag", "ContentLength", "LastModified", "ContentType"):
            check(head[name] == want[name], "HEAD", key, name, head[name], want[name])
    body = data(70_000, "again")
    s3.put_object(Bucket=bucket, Key="new/a.bin", Body=body)
    check(read("new/a.bin") == body, "the mount has the old version")
    check(s3.get_object(Bucket=bucket, Key="new/a.bin")["Body"].read() == body, "the endpoint has the old version")
    check(there.get_object(Bucket=bucket, Key="new/a.bin")["Body"].read() == body, "the origin has the old version")
    s3.delete_object(Bucket=bucket, Key="new/empty")
    check(code(lambda: s3.head_object(Bucket=bucket, Key="new/empty")) == ("404", 404), "a deleted object is there")
    check(code(lambda: s3.get_object(Bucket=bucket, Key="new/empty")) == ("NoSuchKey", 404), "a deleted object is read")
    check(not os.path.exists(os.path.join(mount, "new/empty")), "the mount has a deleted object")


def ranges():
    body = data(5_000_000, 2)
    key = "new/\u00e4\u65e5.bin"
    for text, want in [("bytes=0-0", body[:1]), ("bytes=10-99", body[10:100]), ("bytes=4999990-", body[-10:]), ("bytes=-7", body[-7:]), ("bytes=1048570-1048590", body[1048570:1048591])]:
        got = s3.get_object(Bucket=bucket, Key=key, Range=text)
        check(got["Body"].read() == want and got["ResponseMetadata"]["HTTPStatusCode"] == 206, "range", text)
    check(code(lambda: s3.get_object(Bucket=bucket, Key=key, Range="bytes=5000000-")) == ("InvalidRange", 416), "a range behind the end")
    etag = s3.head_object(Bucket=bucket, Key=key)["ETag"]
    check(code(lambda: s3.get_object(Bucket=bucket, Key=key, IfNoneMatch=etag)) == ("304", 304), "If-None-Match")
    check(code(lambda: s3.get_object(Bucket=bucket, Key=key, IfMatch='"0"')) == ("PreconditionFailed", 412), "If-Match")
    s3.get_object(Bucket=bucket, Key=key, IfMatch=etag)["Body"].read()


def multipart():
    body = data(24 << 20, "large")
    s3.upload_fileobj(io.BytesIO(body), bucket, "new/large.bin", Config=TransferConfig(multipart_threshold=8 << 20, multipart_chunksize=8 << 20))
    to = io.BytesIO()
    s3.download_fileobj(bucket, "new/large.bin", to, Config=TransferConfig(multipart_threshold=1 << 20, multipart_chunksize=1 << 20, max_concurrency=8))
    check(to.getvalue() == body, "a parallel download")
    check(read("new/large.bin") == body, "the mount does not have the multipart upload")
    up = s3.create_multipart_upload(Bucket=bucket, Key="new/never")
    s3.upload_part(Bucket=bucket, Key="new/never", UploadId=up["UploadId"], PartNumber=1, Body=b"x")
    check(len(s3.list_parts(Bucket=bucket, Key="new/never", UploadId=up["UploadId"])["Parts"]) == 1, "ListParts")
    s3.abort_multipart_upload(Bucket=bucket, Key="new/never", UploadId=up["UploadId"])
    check(code(lambda: s3.get_object(Bucket=bucket, Key="new/never")) == ("NoSuchKey", 404), "an upload that was given up")


def listings():
    keys = [f"list/{d}/{i:04d}" for d in ("a", "ab", "b") for i in range(700)]
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda k: s3.put_object(Bucket=bucket, Key=k, Body=b"x"), keys))
    for args in [{}, {"Delimiter": "/"}, {"Prefix": "list/"}, {"Prefix": "list/", "Delimiter": "/"}, {"Prefix": "list/a"}, {"Prefix": "list/a", "Delimiter": "/"},
                 {"Prefix": "list/a/00", "MaxKeys": 7}, {"Prefix": "list/", "StartAfter": "list/a/0699"}, {"Prefix": "none/"}]:
        def all_of(client, name="list_objects_v2"):
            found, groups = [], []
            for page in client.get_paginator(name).paginate(Bucket=bucket, **args):
                found += [(o["Key"], o["Size"], o["ETag"], o["LastModified"]) for o in page.get("Contents", [])]
                groups += [p["Prefix"] for p in page.get("CommonPrefixes", [])]
            return found, groups
        for name in ("list_objects_v2", "list_objects")[:1 if "StartAfter" in args else 2]:
            here, want = all_of(s3, name), all_of(there, name)
            for got, right in zip(here, want):
                check(got == right, name, args, len(got), "of", len(right), [x for x in got if x not in right][:3], [x for x in right if x not in got][:3])
    s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": k} for k in keys[:900]]})
    left = [o["Key"] for p in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix="list/") for o in p.get("Contents", [])]
    check(left == sorted(keys[900:]), "after DeleteObjects", len(left))
    check(bucket in [b["Name"] for b in s3.list_buckets()["Buckets"]], "ListBuckets")
    check(s3.head_bucket(Bucket=bucket)["ResponseMetadata"]["HTTPStatusCode"] == 200, "HeadBucket")
    check(code(lambda: s3.list_objects_v2(Bucket="no-such-bucket-here")) == ("NoSuchBucket", 404), "a bucket that there is not")


def copies():
    s3.copy_object(Bucket=bucket, Key="new/copy", CopySource={"Bucket": bucket, "Key": "new/a+b c%2F.bin"})
    check(s3.get_object(Bucket=bucket, Key="new/copy")["Body"].read() == data(10, 1), "CopyObject")
    check(read("new/copy") == data(10, 1), "the mount does not have the copy")


def presigned():
    s3.put_object(Bucket=bucket, Key="new/a.bin", Body=data(70_000, "again"))
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "new/a.bin"}, ExpiresIn=60)
    check(fetch(url) == (200, data(70_000, "again")), "a presigned GET", url, fetch(url)[1][:300])
    put = urllib.request.Request(s3.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "new/by-url"}), data=b"by url", method="PUT")
    status, text = fetch(put)
    check(status == 200 and read("new/by-url") == b"by url", "a presigned PUT", status, text)
    for bad in (url.replace("new/a.bin", "new/copy"), url + "0", url.replace("X-Amz-Expires=60", "X-Amz-Expires=600"), url.replace("Expires=", "Expires=1")):
        status, text = fetch(bad)
        check(bad == url or status in (400, 403), "a tampered URL", status, bad)


def strangers():
    other = boto3.client("s3", endpoint_url=endpoint, config=style, aws_access_key_id="stranger", aws_secret_access_key="secret")
    check(code(lambda: other.list_objects_v2(Bucket=bucket)) == ("InvalidAccessKeyId", 403), "a key that nobody has")
    other = boto3.client("s3", endpoint_url=endpoint, config=style, aws_access_key_id="all", aws_secret_access_key="wrong")
    check(code(lambda: other.list_objects_v2(Bucket=bucket)) == ("SignatureDoesNotMatch", 403), "a wrong secret")
    reader = boto3.client("s3", endpoint_url=endpoint, config=style, aws_access_key_id="reader", aws_secret_access_key="reads-only-new")
    check(reader.get_object(Bucket=bucket, Key="new/copy")["Body"].read() == data(10, 1), "a reader's GET")
    for do in (lambda: reader.put_object(Bucket=bucket, Key="new/x", Body=b"x"), lambda: reader.get_object(Bucket=bucket, Key="list/a0/0001"),
               lambda: reader.list_objects_v2(Bucket=bucket), lambda: reader.delete_object(Bucket=bucket, Key="new/copy")):
        check(code(do) == ("AccessDenied", 403), "a reader may do what it may not", code(do))
    check("Contents" in reader.list_objects_v2(Bucket=bucket, Prefix="new/"), "a reader's listing")


for part in (put_get_delete, ranges, multipart, listings, copies, presigned, strangers):
    try:
        part()
    except Exception as e:  # the next one may tell more
        wrong.append(f"{part.__name__}: {type(e).__name__}: {e}")
print("\n".join(wrong) or "all well")
sys.exit(bool(wrong))
