"""Writes botocore.json: requests as botocore signs them, which the tests verify.

    python3 testdata/record.py > testdata/botocore.json    (botocore 1.43.11)
"""
import base64
import io
import json
import time
import urllib.parse

import botocore.session
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest, AWSResponse
from botocore.config import Config
from botocore.credentials import Credentials

ACCESS, SECRET, REGION = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "eu-west-3"
KEYS = ["plain", "a+b", "a b", "a%b", "a%2Fb", "//two//slashes/", "/lead", "../up/./x", "ünïcødé/日本", "q?x&y=z#f", "~tilde-_.!*'();:@=,$[]", "a\tb", "\u00a0nbsp", "e\u0301"]
vectors = []


def raw(method, url, headers, body):
    parts = urllib.parse.urlsplit(url)
    target = url.split(parts.netloc, 1)[1] or "/"
    if not any(k.lower() == "host" for k in headers):
        headers = dict(headers, Host=parts.netloc)
    head = f"{method} {target} HTTP/1.1\r\n".encode()
    if headers.get("Transfer-Encoding") == "chunked":
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    for k, v in headers.items():
        if k == "User-Agent":
            continue
        v = v if isinstance(v, bytes) else str(v).encode()
        head += k.encode() + b": " + v + b"\r\n"
    return head + b"\r\n" + body


def keep(name, method, url, headers, body=b""):
    vectors.append({"name": name, "at": int(time.time()), "raw": base64.b64encode(raw(method, url, headers, body)).decode()})


def by_hand():
    credentials = Credentials(ACCESS, SECRET)
    for key in KEYS:
        url = "http://127.0.0.1:9000/bucket/" + urllib.parse.quote(key, safe="/~")
        query = "?" + "&".join(f"{n}={urllib.parse.quote(v, safe='-_.~')}" for n, v in [("prefix", key), ("delimiter", "/"), ("a-b", ""), ("a", "2"), ("a", "1")])
        for auth, what in [(S3SigV4Auth(credentials, "s3", REGION), "header"), (S3SigV4QueryAuth(credentials, "s3", REGION, expires=600), "presigned")]:
            request = AWSRequest("GET", url + query, headers={"Range": "bytes=0-9", "X-Amz-Meta-Spaced": "  a   b  c "})
            auth.add_auth(request)
            prepared = request.prepare()
            keep(f"{what} {key!r}", "GET", prepared.url, prepared.headers)


def by_client(endpoint):
    session = botocore.session.Session()
    session.set_credentials(ACCESS, SECRET)
    client = session.create_client("s3", region_name=REGION, endpoint_url=endpoint,
                                   config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}))

    def sent(request, operation_name=None, **_):
        body = request.body or b""
        body = body.read() if hasattr(body, "read") else body
        keep(f"{endpoint} {request.headers.get('x-id', '')}{request.method} {request.url}", request.method, request.url, dict(request.headers), body)
        raise StopIteration

    client.meta.events.register("before-send.s3", sent)
    for call in [
        lambda: client.list_buckets(),
        lambda: client.list_objects_v2(Bucket="bucket", Prefix="a b/+", Delimiter="/", StartAfter="ü"),
        lambda: client.get_object(Bucket="bucket", Key="a+b", Range="bytes=0-9", IfMatch='"x"'),
        lambda: client.put_object(Bucket="bucket", Key="ä ö", Body=b"hello", Metadata={"n": "v  w"}),
        lambda: client.put_object(Bucket="bucket", Key="f", Body=io.BytesIO(b"x" * 3000), ChecksumAlgorithm="SHA256"),
        lambda: client.put_object(Bucket="bucket", Key="f", Body=io.BytesIO(b""), ContentEncoding="gzip"),
        lambda: client.copy_object(Bucket="bucket", Key="c", CopySource={"Bucket": "bucket", "Key": "a+b ü"}),
        lambda: client.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": "a"}]}),
        lambda: client.create_multipart_upload(Bucket="bucket", Key="m", ContentType="text/plain; charset=utf-8"),
        lambda: client.upload_part(Bucket="bucket", Key="m", UploadId="u+/=", PartNumber=1, Body=b"part"),
    ]:
        try:
            call()
        except StopIteration:
            pass
        except Exception as e:
            if "StopIteration" not in repr(e):
                raise
    for method, args in [("get_object", {"Key": "a b"}), ("put_object", {"Key": "p", "ContentType": "text/x"})]:
        url = client.generate_presigned_url(method, Params={"Bucket": "bucket", **args}, ExpiresIn=60)
        keep(f"presigned {method}", "PUT" if method == "put_object" else "GET", url, {"Content-Type": "text/x"} if method == "put_object" else {})


by_hand()
by_client("http://localhost:9000")
by_client("https://s3.example.org")
print(json.dumps(vectors, indent=0))
