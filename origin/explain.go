package origin

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/origin/identity"
)

// Explain says in one line what is wrong and what cures it. An error that is not an origin's is
// returned in its own words.
func Explain(err error) string {
	problem, cure := Diagnose(err)
	if cure == "" {
		return problem
	}
	return problem + "; " + cure
}

// Diagnose is Explain with the cure apart; "" means that no cure is known.
func Diagnose(err error) (problem, cure string) {
	var e *Error
	if !errors.As(err, &e) {
		return oneLine(err.Error()), ""
	}
	if problem, cure = e.explain(); cure == "" {
		return oneLine(e.Error()), ""
	}
	if e.via != "" {
		problem += " (" + e.via + " sends requests on to " + e.Endpoint + ")"
	}
	return oneLine(e.Where + ": " + problem), oneLine(cure)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func (e *Error) explain() (problem, cure string) {
	if problem, cure = e.explainNetwork(); cure != "" {
		return problem, cure
	}
	bucket := bucketOf(e.Where)
	switch e.Code {
	case "NoSuchBucket":
		return "there is no bucket " + bucket + " at " + e.Endpoint, "check the bucket's name, and that endpoint and credentials are of the account that has it"
	case "InvalidBucketName":
		return bucket + " can be no bucket's name", "write 3 to 63 lower-case letters, digits, dots and hyphens"
	case "RequestTimeTooSkewed":
		return "this machine's clock and the origin's differ by more than 15 minutes", "set the clock (timedatectl set-ntp true) and try again"
	case "InvalidAccessKeyId", "XAdminUserNotFound": // versitygw's own word
		return "the origin does not know the access key", "check AWS_ACCESS_KEY_ID or AWS_PROFILE, and that the endpoint " + e.Endpoint + " is theirs"
	case "SignatureDoesNotMatch":
		return "the secret key does not fit the access key", "check AWS_SECRET_ACCESS_KEY, or the profile in use"
	case "ExpiredToken", "ExpiredTokenException", "InvalidToken":
		return "the session token is invalid or has expired", "renew the credentials (aws sso login, or a new AWS_SESSION_TOKEN)"
	}
	if wrong, cure := e.explainPlace(); cure != "" {
		return wrong, cure
	}
	if wrong, cure := e.explainObject(); cure != "" {
		return wrong, cure
	}
	switch {
	case strings.Contains(e.Message, "HTTP request to an HTTPS server"), strings.Contains(e.Message, "plain HTTP request was sent to HTTPS port"):
		return e.Endpoint + " speaks HTTPS", "write the endpoint as " + strings.Replace(e.Endpoint, "http://", "https://", 1)
	case e.Status == 403 && !errors.Is(e.Err, syscall.EDQUOT), e.Status == 401:
		return e.explainDenial(bucket)
	case errors.Is(e.Err, syscall.EDQUOT):
		return "the quota is used up (" + e.said() + ")", "raise the quota at the origin, or delete what is not needed"
	case errors.Is(e.Err, syscall.ENOSPC):
		return "the origin's disks are full (" + e.said() + ")", "add disks there, or delete what is not needed"
	case errors.Is(e.Err, syscall.EFBIG):
		return "that is more than the origin takes in one object or part (" + e.said() + ")", "set write.part_size to what it takes, or write smaller files"
	case errors.Is(e.Err, errHeads), errors.Is(e.Err, errContradiction):
		return oneLine(e.Err.Error()), cureRewritten
	case errors.Is(e.Err, errLied) && e.Op == "head":
		return strings.TrimPrefix(e.Err.Error(), errLied.Error()+": "), cureRewritten
	case errors.Is(e.Err, errLied) && e.Op == "get":
		return "the origin does not answer ranged reads: " + strings.TrimPrefix(e.Err.Error(), errLied.Error()+": "),
			"use an endpoint that supports Range, without a proxy that rewrites answers"
	}
	return "", ""
}

// explainDenial uses the server's own words where they say more than that access is denied. Amazon
// names the action, which need not be the one that was asked for: it may be kms:Decrypt.
func (e *Error) explainDenial(bucket string) (problem, cure string) {
	problem, cure = "reading is denied", "grant s3:GetObject on arn:aws:s3:::"+bucket+"/* to these credentials"
	if e.Op == "list" {
		problem, cure = "listing is denied", "grant s3:ListBucket on arn:aws:s3:::"+bucket+" to these credentials"
	}
	uploads := "s3:ListBucketMultipartUploads on arn:aws:s3:::" + bucket
	switch {
	case e.Op == "uploads":
		problem, cure = "listing unfinished uploads is denied", "grant "+uploads+" to these credentials"
	case e.writes():
		problem, cure = "writing is denied", "grant s3:PutObject, s3:AbortMultipartUpload, s3:ListMultipartUploadParts and s3:DeleteObject on arn:aws:s3:::"+bucket+"/*, and "+uploads+", to these credentials"
	}
	said := strings.TrimSuffix(e.Message, ".")
	switch strings.ToLower(said) {
	case "", "access denied", "accessdenied", "forbidden", "unauthorized":
		said = ""
	}
	if known := e.Code == "" || e.Code == "AccessDenied"; !known {
		if said != "" {
			said = ": " + said
		}
		return problem + " (" + e.Code + said + ")", "look that up in the origin's list of errors; if it is about rights, " + cure
	}
	if said != "" {
		problem += " (" + said + ")"
	}
	_, after, named := strings.Cut(said, "not authorized to perform: ")
	action, rest, _ := strings.Cut(after, " ")
	if named && action != "" {
		cure = "grant " + action
		if _, on, ok := strings.Cut(rest, "on resource: "); ok {
			on, _, _ = strings.Cut(on, " ")
			cure += " on " + strings.Trim(on, `"`)
		}
		if cure += " to these credentials"; strings.Contains(said, "explicit deny") {
			cure = "take back the explicit deny of " + action + ", or use other credentials"
		}
		return problem, cure
	}
	if pays := strings.ToLower(said); strings.Contains(pays, "requester pays") || strings.Contains(pays, "requester-pays") || strings.Contains(pays, "request-payer") {
		return problem, curePays
	}
	if e.Op == "copy" {
		cure += "; a copy needs s3:GetObject on the objects, too, and of an object with tags s3:GetObjectTagging and s3:PutObjectTagging"
	}
	if isAWS(e.Endpoint) && !e.pays {
		cure += "; if the bucket has its readers pay, set requester_pays: true"
	}
	return problem, cure
}

// writes reports whether a write was asked for.
func (e *Error) writes() bool {
	switch e.Op {
	case "put", "begin", "part", "copy", "parts", "complete", "abort", "delete":
		return true
	}
	return false
}

// said is what the origin answered, in short.
func (e *Error) said() string {
	return strings.TrimSuffix(strings.TrimSuffix(strings.TrimSpace(strconv.Itoa(e.Status)+" "+e.Code)+": "+e.Message, "."), ": ")
}

const cureRewritten = "use an endpoint without a proxy that rewrites answers; at Google give what is stored compressed Cache-Control: no-transform"

const curePays = "the bucket has its readers pay: set requester_pays: true (--requester-pays), with credentials of an account that may be charged"

// explainObject explains an object that is unreadable by itself.
func (e *Error) explainObject() (problem, cure string) {
	code := e.Code
	if e.Message != "" {
		code += ": " + strings.TrimSuffix(e.Message, ".")
	}
	switch {
	case errors.Is(e.Err, hearth.ErrArchived):
		class := ""
		if e.Class != "" {
			class = " (storage class " + e.Class + ")"
		}
		return "it is archived" + class, "restore it at the origin (aws s3api restore-object), then read it again"
	case e.Code == "UserProjectMissing":
		return "reading is refused (" + code + ")", "Google wants the project that pays, which Hearth does not name: use credentials that may charge the bucket's own (serviceusage.services.use)"
	case strings.HasPrefix(e.Code, "KMS.") || strings.HasPrefix(e.Code, "Kms"):
		return "the key that it is encrypted with cannot be used (" + code + ")",
			"enable that key (aws kms enable-key) and grant kms:Decrypt on it to these credentials, or store the object under another one"
	case e.Status == http.StatusBadRequest && strings.Contains(e.Message, "Server Side Encryption"):
		return "it is encrypted with a key of its writer's own (" + code + ")", "store it under a key of the origin's (SSE-S3 or SSE-KMS): such a key cannot be given"
	}
	return "", ""
}

// explainPlace explains errors about where the bucket is.
func (e *Error) explainPlace() (problem, cure string) {
	said := strings.ToLower(e.Message)
	switch {
	case e.Code == "SecondLevelDomainForbidden", e.Code == "PathStyleDomainForbidden", e.Code == "VirtualHostDomainRequired", e.Code == "InvalidPathAccess",
		e.Status/100 == 4 && (strings.Contains(said, "virtual host") || strings.Contains(said, "virtual-host") || strings.Contains(said, "third level domain") || strings.Contains(said, "path style") || strings.Contains(said, "path-style")):
		return e.Endpoint + " wants the bucket in the host's name (" + strings.TrimSuffix(e.Code+": "+e.Message, ": ") + ")", "set path_style: false (--path-style false)"
	case e.movedTo() != "" && e.Region == "":
		return "the origin sends requests on to " + e.movedTo() + " (" + strconv.Itoa(e.Status) + "), and they cannot go on there", "set endpoint: " + e.movedTo() + ", if that is an S3 server"
	}
	return e.explainRegion()
}

func (e *Error) explainRegion() (problem, cure string) {
	malformed := e.Code == "AuthorizationHeaderMalformed" || e.Code == "PermanentRedirect" || e.Code == "IllegalLocationConstraintException" ||
		e.Status == 301 || e.Status == 307
	switch {
	case !malformed:
		return "", ""
	case e.Region != "":
		return "the bucket is in region " + e.Region, "set region: " + e.Region + " or AWS_REGION=" + e.Region
	case strings.Contains(e.Message, "region"):
		return "the origin refuses the region (" + strings.TrimSuffix(e.Message, ".") + ")", "set region: or AWS_REGION to the bucket's"
	}
	return "the bucket is in another region", "set region: or AWS_REGION to the bucket's"
}

func (e *Error) explainNetwork() (problem, cure string) {
	var (
		name      *net.DNSError
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		who       *identity.Error
		err       = e.Err
	)
	switch {
	case errors.As(err, &who):
		return who.Problem, who.Cure
	case errors.As(err, &name) && e.asHost(name.Name):
		return "the host name " + name.Name + " is not found", "set path_style: true (--path-style true), unless the server has the bucket in its host's name; then check this machine's DNS"
	case errors.As(err, &name):
		return "the host name " + name.Name + " is not found", "check the endpoint, the region in it, and this machine's DNS"
	case errors.As(err, &authority):
		return "the certificate of " + e.Endpoint + " is signed by an unknown authority", "name that authority's certificate in ca_file: or AWS_CA_BUNDLE"
	case errors.As(err, &host):
		return "the certificate of " + e.Endpoint + " is for another name", "use a name that it is for, or path_style: true if it is the bucket's name in front"
	case errors.As(err, &invalid):
		return "the certificate of " + e.Endpoint + " is not valid: " + invalid.Error(), "renew it, or set this machine's clock"
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return e.Endpoint + " does not speak HTTPS", "write the endpoint as " + strings.Replace(e.Endpoint, "https://", "http://", 1)
	case errors.Is(err, errSpeaksTLS), strings.Contains(err.Error(), `malformed HTTP response "\x15\x03`):
		return e.Endpoint + " speaks HTTPS", "write the endpoint as " + strings.Replace(e.Endpoint, "http://", "https://", 1)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nobody listens at " + e.Endpoint, "check the endpoint's port, and that the server runs"
	case errors.Is(err, errStalled), isTimeout(err):
		return e.Endpoint + " does not answer", "check the endpoint, and proxies and firewalls between"
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return e.Endpoint + " ends connections without an answer", "check that the endpoint is an S3 server, and its http:// or https://"
	}
	return "", ""
}

// asHost reports whether a host's name begins with the bucket's, at a server that is not Amazon's.
func (e *Error) asHost(name string) bool {
	return strings.HasPrefix(name, bucketOf(e.Where)+".") && !isAWS(e.Endpoint)
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

func bucketOf(where string) string {
	if u, err := url.Parse(where); err == nil && u.Host != "" {
		return u.Host
	}
	bucket, _, _ := strings.Cut(strings.TrimPrefix(where, "s3://"), "/")
	return bucket
}
