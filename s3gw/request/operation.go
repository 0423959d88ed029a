package request

import (
	"net/http"
)

func notAllowed() *Error {
	return New("MethodNotAllowed", "The specified method is not allowed against this resource.")
}

// service parses a request that names no bucket.
func (q *Request) service(method string, p *params) *Error {
	switch {
	case method == http.MethodPost && p.sub == "hearth-batch":
		return New("InvalidRequest", "A batch is asked of a bucket: POST /BUCKET?hearth-batch")
	case method != http.MethodGet:
		return notAllowed()
	}
	q.Operation, q.How, q.reach = "ListBuckets", Cached, reachesNothing
	return nil
}

// bucket parses a request that names a bucket and no key.
func (q *Request) bucket(r *http.Request, p *params, seen headerSet) *Error {
	method := r.Method
	switch method {
	case http.MethodGet:
		return q.bucketRead(p)
	case http.MethodHead:
		q.Operation, q.How, q.reach = "HeadBucket", Cached, reachesSome
		if p.sub != "" || p.other {
			q.reach = reachesBucket
		}
		return nil
	case http.MethodPut, http.MethodDelete, http.MethodPost:
		q.How, q.reach, q.Touches, q.Changes = Configure, reachesBucket, Everything, true
	default:
		return notAllowed()
	}
	if seen.has(headerServer) {
		return notTheirs()
	}
	if f := q.copies(r.Header, p); f != nil {
		return f
	}
	noun := configuration(p.sub)
	switch {
	case method == http.MethodPost:
		return q.bucketPost(p, noun, seen)
	case noun != "" && method == http.MethodPut:
		q.Operation = put(p.sub, noun)
	case noun != "":
		q.Operation = remove(noun)
	case method == http.MethodDelete:
		q.Operation = "DeleteBucket"
	default:
		q.Operation = "CreateBucket"
		if !proper(q.Bucket) {
			return New("InvalidBucketName", "The specified bucket is not valid.")
		}
	}
	return nil
}

func (q *Request) bucketRead(p *params) *Error {
	q.How, q.reach = Pass, reachesBucket
	noun := configuration(p.sub)
	switch {
	case p.session: // whatever stands beside it
		// It would give the client keys that have the endpoint's own rights.
		q.Operation = "CreateSession"
		return New("NotImplemented", "Sessions are not given here; sign each request")
	case p.sub == "location":
		q.Operation, q.How, q.reach = "GetBucketLocation", Cached, reachesSome
	case p.sub == "versions":
		q.Operation, q.reach = "ListObjectVersions", reachesPrefix
	case p.sub == "uploads":
		q.Operation, q.reach = "ListMultipartUploads", reachesPrefix
	case p.sub == "versioning":
		q.Operation, q.reach = "GetBucketVersioning", reachesSome
	case noun != "" && plural(p.sub) && !p.id:
		q.Operation = "List" + noun + "s"
	case noun != "":
		q.Operation = "Get" + noun
	default:
		q.Operation, q.How, q.reach = "ListObjects", Cached, reachesPrefix
		if p.list2 {
			q.Operation = "ListObjectsV2"
		}
		if p.sub != "" { // a sub-resource of keys
			q.How, q.reach = Pass, reachesBucket
		}
	}
	// Perhaps it is another operation, which ignores the prefix.
	if p.many || p.other || p.valued || q.reach == reachesSome && p.beside() {
		q.How, q.reach = Pass, reachesBucket
	}
	return nil
}

// plain reports whether a request is a read or a listing, and nothing else that the right to read
// allows. Else is: an object's owner, its tags and old versions, unfinished uploads, the bucket's
// configuration. Those have sub-resources and parameters of their own, and origins have some that
// no list here knows.
func (q *Request) plain(p *params) bool {
	due := ""
	switch q.Operation {
	case "GetObject", "HeadObject", "ListObjects", "ListObjectsV2", "HeadBucket":
	case "GetBucketLocation": // clients ask for it before they sign or list anything
		due = "location"
	case "GetBatch":
		due = "hearth-batch"
	default:
		return false
	}
	return p.sub == due && !p.many && !p.valued && !p.other && !p.beyond
}

func (q *Request) bucketPost(p *params, noun string, seen headerSet) *Error {
	switch {
	case p.many:
		return New("InvalidArgument", "Conflicting query string parameters")
	case p.sub == "delete":
		q.Operation, q.How, q.reach, q.Touches = "DeleteObjects", Write, reachesSome, Listed
		if p.other || p.valued || p.forced || seen.has(headerForce) {
			return New("InvalidArgument", "DeleteObjects has parameters that are not known")
		}
	case p.sub == "hearth-batch":
		q.Operation, q.How, q.reach, q.Touches, q.Changes = "GetBatch", Own, reachesSome, Nothing, false
	case p.sub == "metadataConfiguration" || p.sub == "metadataTable":
		q.Operation = "Create" + noun
	case p.sub == "":
		q.Operation = "PostObject"
		return New("NotImplemented", "Forms are not taken here; use a presigned PUT")
	default:
		return notAllowed()
	}
	return nil
}

// object parses a request that names a key.
func (q *Request) object(r *http.Request, p *params, seen headerSet) *Error {
	q.reach = reachesKey
	switch r.Method {
	case http.MethodGet:
		return q.objectRead(p)
	case http.MethodHead:
		q.Operation, q.How = "HeadObject", Cached
		if p.sub != "" {
			q.How = Pass
		}
		return nil
	case http.MethodPut, http.MethodPost, http.MethodDelete:
		q.How, q.Touches, q.Changes = Write, TheKey, true
	default:
		return notAllowed()
	}
	if seen.has(headerServer) {
		return notTheirs()
	}
	f := q.copies(r.Header, p) // whichever write it is: some origin may take it for a copy
	if f != nil {
		return f
	}
	switch r.Method {
	case http.MethodPut:
		f = q.objectPut(p, seen)
	case http.MethodPost:
		f = q.objectPost(p)
	default:
		q.objectDelete(p, seen)
	}
	if f == nil && q.How == Pass && (p.other || p.valued) && q.Changes {
		// Some origin may take it for another operation.
		q.How, q.Touches = Write, TheKey
	}
	return f
}

func notTheirs() *Error {
	return New("AccessDenied", "Headers by which servers replicate are not taken from clients")
}

func (q *Request) objectRead(p *params) *Error {
	q.How = Pass
	switch p.sub {
	case "":
		q.Operation, q.How = "GetObject", Cached
	case "acl":
		q.Operation = "GetObjectAcl"
	case "attributes":
		q.Operation = "GetObjectAttributes"
	case "legal-hold":
		q.Operation = "GetObjectLegalHold"
	case "retention":
		q.Operation = "GetObjectRetention"
	case "tagging":
		q.Operation = "GetObjectTagging"
	case "uploadId":
		q.Operation = "ListParts"
	case "torrent":
		q.Operation = "GetObjectTorrent"
		return New("NotImplemented", "Torrents are not made here")
	default:
		q.Operation = "GetObject"
	}
	return nil
}

func (q *Request) objectPut(p *params, seen headerSet) *Error {
	if seen.has(headerExtract) { // MinIO makes an object of each file in an archive
		q.reach, q.Touches = reachesBucket, Everything
	}
	part := p.sub == "uploadId" && p.part
	switch {
	case part && q.Source != nil:
		q.Operation, q.How, q.Touches = "UploadPartCopy", Pass, Nothing
	case part:
		q.Operation, q.How, q.Touches = "UploadPart", Pass, Nothing
	case p.sub == "acl":
		q.Operation, q.How, q.Touches = "PutObjectAcl", Pass, Nothing
	case p.sub == "tagging":
		q.Operation, q.How, q.Touches = "PutObjectTagging", Pass, Nothing
	// These three change the answer to a HEAD.
	case p.sub == "legal-hold":
		q.Operation = "PutObjectLegalHold"
	case p.sub == "retention":
		q.Operation = "PutObjectRetention"
	case p.sub == "encryption":
		q.Operation = "UpdateObjectEncryption"
	case p.sub == "renameObject":
		q.Operation = "RenameObject"
		return New("NotImplemented", "Objects of directory buckets are not renamed here")
	case q.Source != nil:
		q.Operation = "CopyObject"
	default:
		q.Operation = "PutObject"
	}
	if seen.has(headerExtract) {
		q.How, q.Touches = Write, Everything
	}
	return nil
}

func (q *Request) objectPost(p *params) *Error {
	switch {
	case p.sub == "uploads":
		q.Operation, q.How, q.Touches = "CreateMultipartUpload", Pass, Nothing
	case p.sub == "uploadId":
		q.Operation = "CompleteMultipartUpload"
	case p.sub == "restore":
		q.Operation = "RestoreObject"
	case p.sub == "select" && !p.many && !p.other && !p.valued:
		q.Operation, q.How, q.Touches, q.Changes = "SelectObjectContent", Pass, Nothing, false
	case p.sub == "" && !p.other:
		q.Operation = "PostObject"
		return notAllowed()
	default:
		q.Operation = "PostObject"
	}
	return nil
}

func (q *Request) objectDelete(p *params, seen headerSet) {
	switch {
	case p.forced || seen.has(headerForce): // MinIO deletes all that begins with the key
		q.Operation, q.Touches = "DeleteObject", Below
	case p.sub == "tagging":
		q.Operation, q.How, q.Touches = "DeleteObjectTagging", Pass, Nothing
	case p.sub == "uploadId":
		q.Operation, q.How, q.Touches = "AbortMultipartUpload", Pass, Nothing
	case p.other:
		q.Operation, q.Touches = "DeleteObject", Below
	default:
		q.Operation = "DeleteObject"
	}
}

// configuration returns Amazon's name for the part of a bucket's configuration that a sub-resource
// stands for. "" means that it stands for none.
func configuration(sub string) string {
	switch sub {
	case "":
		return ""
	case "abac":
		return "BucketAbac"
	case "accelerate":
		return "BucketAccelerateConfiguration"
	case "acl":
		return "BucketAcl"
	case "analytics":
		return "BucketAnalyticsConfiguration"
	case "cors":
		return "BucketCors"
	case "encryption":
		return "BucketEncryption"
	case "intelligent-tiering":
		return "BucketIntelligentTieringConfiguration"
	case "inventory":
		return "BucketInventoryConfiguration"
	case "lifecycle":
		return "BucketLifecycleConfiguration"
	case "logging":
		return "BucketLogging"
	case "metadataConfiguration":
		return "BucketMetadataConfiguration"
	case "metadataTable":
		return "BucketMetadataTableConfiguration"
	case "metadataInventoryTable":
		return "BucketMetadataInventoryTableConfiguration"
	case "metadataJournalTable":
		return "BucketMetadataJournalTableConfiguration"
	}
	return configuration2(sub)
}

func configuration2(sub string) string {
	switch sub {
	case "metrics":
		return "BucketMetricsConfiguration"
	case "notification":
		return "BucketNotificationConfiguration"
	case "object-lock":
		return "ObjectLockConfiguration"
	case "ownershipControls":
		return "BucketOwnershipControls"
	case "policy":
		return "BucketPolicy"
	case "policyStatus":
		return "BucketPolicyStatus"
	case "publicAccessBlock":
		return "PublicAccessBlock"
	case "replication":
		return "BucketReplication"
	case "requestPayment":
		return "BucketRequestPayment"
	case "tagging":
		return "BucketTagging"
	case "versioning":
		return "BucketVersioning"
	case "website":
		return "BucketWebsite"
	}
	return ""
}

// plural reports whether a bucket has several of them, each with an id.
func plural(sub string) bool {
	return sub == "analytics" || sub == "intelligent-tiering" || sub == "inventory" || sub == "metrics"
}

func put(sub, noun string) string {
	if sub == "metadataInventoryTable" || sub == "metadataJournalTable" {
		return "Update" + noun
	}
	return "Put" + noun
}

func remove(noun string) string {
	if noun == "BucketLifecycleConfiguration" {
		return "DeleteBucketLifecycle"
	}
	return "Delete" + noun
}
