"""Lists, downloads, uploads or removes by boto3, as programs do.

Arguments: endpoint, bucket, and one of
    list            prints SIZE KEY of all keys
    get KEY FILE    downloads by ranges of 8 MiB, ten at a time
    put FILE KEY    uploads in parts of 8 MiB
    rm KEY
"""

import sys

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

endpoint, bucket, what, *rest = sys.argv[1:]
s3 = boto3.client("s3", endpoint_url=endpoint, config=Config(signature_version="s3v4", s3={"addressing_style": "path"}, retries={"max_attempts": 1}))
pieces = TransferConfig(multipart_threshold=8 << 20, multipart_chunksize=8 << 20, max_concurrency=10)
if what == "list":
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for o in page.get("Contents", []):
            print(o["Size"], o["Key"])
elif what == "get":
    s3.download_file(bucket, rest[0], rest[1], Config=pieces)
elif what == "put":
    s3.upload_file(rest[0], bucket, rest[1], Config=pieces)
elif what == "rm":
    s3.delete_object(Bucket=bucket, Key=rest[0])
else:
    sys.exit("list, get, put or rm")
