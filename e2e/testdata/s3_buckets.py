"""Makes, uses and removes buckets of an account through an endpoint, and fails where an answer is wrong.

Arguments: endpoint, a bucket that is there, a key of it, the name of one to be made.
"""

import sys

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

endpoint, there, key, made = sys.argv[1:]
s3 = boto3.client("s3", endpoint_url=endpoint, config=Config(signature_version="s3v4", s3={"addressing_style": "path"}, retries={"max_attempts": 1}))


def buckets(**more):
    return [b["Name"] for b in s3.list_buckets(**more)["Buckets"]]


def status(ask, **more):
    """What an error's status is; 200: there was none."""
    try:
        ask(**more)
    except ClientError as e:
        return e.response["ResponseMetadata"]["HTTPStatusCode"]
    return 200


for again in range(2):  # a name that was removed can be used again
    assert buckets() == [there], buckets()
    assert status(s3.head_bucket, Bucket=made) == 404
    s3.create_bucket(Bucket=made)
    assert buckets() == sorted([there, made]), buckets()
    s3.put_object(Bucket=made, Key="d/k", Body=b"text %d" % again)
    assert s3.get_object(Bucket=made, Key="d/k")["Body"].read() == b"text %d" % again
    s3.copy_object(Bucket=made, Key="copy", CopySource={"Bucket": there, "Key": key})
    assert s3.head_object(Bucket=made, Key="copy")["ETag"] == s3.head_object(Bucket=there, Key=key)["ETag"]
    assert [o["Key"] for o in s3.list_objects_v2(Bucket=made)["Contents"]] == ["copy", "d/k"]
    assert status(s3.delete_bucket, Bucket=made) == 409
    s3.delete_objects(Bucket=made, Delete={"Objects": [{"Key": "d/k"}, {"Key": "copy"}]})
    assert "Contents" not in s3.list_objects_v2(Bucket=made)
    s3.delete_bucket(Bucket=made)
    for ask in (s3.head_bucket, s3.get_bucket_location, s3.list_objects_v2, s3.list_objects):
        assert status(ask, Bucket=made) == 404, ask
    assert status(s3.get_object, Bucket=made, Key="d/k") == 404
    assert buckets() == [there], buckets()
