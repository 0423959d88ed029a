"""Uses the versions of a bucket through an endpoint, beside a mount of it, and fails where one shows another than it should.

Arguments: endpoint, bucket, the mount's directory.
"""

import os
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

endpoint, bucket, mount = sys.argv[1:]
s3 = boto3.client("s3", endpoint_url=endpoint, config=Config(signature_version="s3v4", s3={"addressing_style": "path"}, retries={"max_attempts": 1}))


def shows(want):
    """The key has that text (None: it is not there) at the endpoint, by GET, HEAD and LIST, and in the mount."""
    listed = [o["Size"] for o in s3.list_objects_v2(Bucket=bucket, Prefix="d/").get("Contents", []) if o["Key"] == "d/k"]
    path = os.path.join(mount, "d/k")
    if want is None:
        for ask in (s3.get_object, s3.head_object):
            try:
                ask(Bucket=bucket, Key="d/k")
            except ClientError as e:
                assert e.response["ResponseMetadata"]["HTTPStatusCode"] == 404, e
            else:
                raise AssertionError("it is still there")
        assert listed == [] and not os.path.exists(path), (listed, os.path.exists(path))
        return
    got = s3.get_object(Bucket=bucket, Key="d/k")["Body"].read()
    assert got == want, got
    assert s3.head_object(Bucket=bucket, Key="d/k")["ContentLength"] == len(want)
    assert listed == [len(want)], listed
    with open(path, "rb") as f:
        got = f.read()
    assert got == want, got


s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
assert s3.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
old = s3.put_object(Bucket=bucket, Key="d/k", Body=b"old")["VersionId"]
shows(b"old")
new = s3.put_object(Bucket=bucket, Key="d/k", Body=b"the new one")["VersionId"]
shows(b"the new one")
assert s3.get_object(Bucket=bucket, Key="d/k", VersionId=old)["Body"].read() == b"old"
assert s3.head_object(Bucket=bucket, Key="d/k", VersionId=old)["ContentLength"] == 3
marker = s3.delete_object(Bucket=bucket, Key="d/k")
assert marker["DeleteMarker"], marker
shows(None)
told = s3.list_object_versions(Bucket=bucket, Prefix="d/k")
assert [v["VersionId"] for v in told["Versions"]] == [new, old] and len(told["DeleteMarkers"]) == 1, told
s3.delete_object(Bucket=bucket, Key="d/k", VersionId=marker["VersionId"])
shows(b"the new one")
s3.delete_object(Bucket=bucket, Key="d/k", VersionId=new)
shows(b"old")
s3.copy_object(Bucket=bucket, Key="d/k", CopySource={"Bucket": bucket, "Key": "d/k", "VersionId": old}, MetadataDirective="REPLACE", Metadata={"again": "yes"})
assert s3.head_object(Bucket=bucket, Key="d/k")["Metadata"] == {"again": "yes"}
answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "d/k", "VersionId": v["VersionId"]} for v in s3.list_object_versions(Bucket=bucket, Prefix="d/k")["Versions"]]})
assert len(answer["Deleted"]) == 2 and not answer.get("Errors"), answer
shows(None)
