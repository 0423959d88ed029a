package request

import (
	"io"
	"strings"
	"testing"
)

func TestDocumentsNameNothingElsewhere(t *testing.T) {
	// The names in a body are checked like parameters: no part and no version leads upwards, and no
	// restore writes elsewhere. All other faults are left to the origin.
	const complete, restore, deletes = "CompleteMultipartUpload", "RestoreObject", "DeleteObjects"
	part := func(inner string) string {
		return "<CompleteMultipartUpload><Part>" + inner + "</Part></CompleteMultipartUpload>"
	}
	object := func(inner string) string {
		return "<Delete><Object><Key>mine/a</Key>" + inner + "</Object></Delete>"
	}
	for _, c := range []struct{ operation, doc, want string }{
		{complete, part("<PartNumber>1</PartNumber><ETag>&#34;9b2cf5-2&#34;</ETag><ChecksumSHA256>/+a//b=</ChecksumSHA256>"), ""},
		{complete, "<?xml version=\"1.0\"?>\n<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\n  <Part>\n <PartNumber>1</PartNumber>\n <ETag>\"a\"</ETag></Part>\n</CompleteMultipartUpload>\n", ""},
		{complete, part("<PartNumber>x</PartNumber><New>a..b</New>"), ""},
		{complete, "", ""},
		{complete, "nonsense", ""},
		{complete, "<CompleteMultipartUpload/>", ""},
		{complete, part("<PartNumber>../../victim</PartNumber>"), "InvalidArgument"},
		{complete, part("<partnumber>..</partnumber>"), "InvalidArgument"},
		{complete, part("<PartNumber>.<!-- -->./x</PartNumber>"), "InvalidArgument"},
		{complete, part("<PartNumber>..<![CDATA[/x]]></PartNumber>"), "InvalidArgument"},
		{complete, part("<PartNumber>&#46;&#x2e;</PartNumber>"), "InvalidArgument"},
		{complete, part("<s:PartNumber xmlns:s=\"x\">a/b</s:PartNumber>"), "InvalidArgument"},
		{complete, part("<PartNumber>1<x/></PartNumber>"), "MalformedXML"},
		{complete, part("<ETag>../../other/secret</ETag>"), "InvalidArgument"},
		{complete, part("<ETag>%2e%2e%2fx</ETag>"), "InvalidArgument"},
		{complete, part("<New>..\\x</New>"), "InvalidArgument"},
		{complete, "../x", "InvalidArgument"},
		{complete, "<!DOCTYPE x [<!ENTITY e '..'>]>" + part("<PartNumber>&e;</PartNumber>"), "MalformedXML"},
		{complete, part("<PartNumber>&e;</PartNumber>"), "MalformedXML"},
		{complete, "<CompleteMultipartUpload", "MalformedXML"},
		{restore, "<RestoreRequest><Days>1</Days><GlacierJobParameters><Tier>Bulk</Tier></GlacierJobParameters></RestoreRequest>", ""},
		{restore, "<RestoreRequest><Description>../x</Description></RestoreRequest>", ""},
		{restore, "<RestoreRequest><Type>SELECT</Type><OutputLocation><S3><BucketName>other</BucketName><Prefix>x</Prefix></S3></OutputLocation></RestoreRequest>", "NotImplemented"},
		{restore, "<RestoreRequest><New><outputlocation/></New></RestoreRequest>", "NotImplemented"},
		{restore, "<RestoreRequest><SelectParameters/></RestoreRequest>", "NotImplemented"},
		{restore, "<x", "MalformedXML"},
		{deletes, object("<VersionId>_vIUDd4Cx1U..kWYq</VersionId><ETag>\"a\"</ETag><LastModifiedTime>Wed, 21 Oct 2099 07:28:00 GMT</LastModifiedTime><Size>1</Size>"), ""},
		{deletes, object("<VersionId> null\n</VersionId>"), ""},
		{deletes, object("<VersionId/>"), ""},
		{deletes, object("<VersionId>../../victim</VersionId>"), "InvalidArgument"},
		{deletes, object("<VersionId>..</VersionId>"), "InvalidArgument"},
		{deletes, object("<versionid>a/b</versionid>"), "InvalidArgument"},
		{deletes, object("<VersionId>.<!-- -->.</VersionId>"), "InvalidArgument"},
		{deletes, object("<VersionId>&#46;.</VersionId>"), "InvalidArgument"},
		{deletes, object("<VersionId>..<x>a</x></VersionId>"), "MalformedXML"},
		{deletes, object("<UploadId>..</UploadId>"), "InvalidArgument"},
		{deletes, object("<New>../x</New>"), "InvalidArgument"},
		{deletes, object("<New><Deep>..\\x</Deep></New>"), "InvalidArgument"},
		{deletes, object("<key>victim</key>"), "MalformedXML"},
		{deletes, "<Delete><Object><Key>mine/a</Key></Object><object><Key>victim</Key></object></Delete>", "MalformedXML"},
	} {
		var err error
		if c.operation == deletes {
			_, err = Deletes(strings.NewReader(c.doc))
		} else {
			err = Document(c.operation, strings.NewReader(c.doc))
		}
		switch {
		case c.want != "":
			checkFault(t, err, c.want)
			if err == nil {
				t.Error(c.doc)
			}
		case err != nil:
			t.Errorf("%s: %v", c.doc, err)
		}
	}
	checkFault(t, Document(complete, io.MultiReader(strings.NewReader("<a>"), forever{})), "MalformedXML")
}
