package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/processcreds"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// Error says why there is no identity, and the cure, both without secrets.
type Error struct {
	Problem, Cure string
	// Away says that the source could not be asked, or refused for now: waiting may mend it.
	Away bool
	// Err is the cause, where there is one.
	Err error
}

// Error is the line.
func (e *Error) Error() string { return oneLine(e.Problem + "; " + e.Cure) }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// wrong makes an Error of an error of the files of profiles.
func (e *environment) wrong(err error) *Error {
	var (
		role   config.SharedConfigAssumeRoleError
		absent config.SharedConfigProfileNotExistError
		arn    config.CredentialRequiresARNError
		load   config.SharedConfigLoadError
	)
	const half = "partial credentials found for profile "
	files := e.either()
	switch {
	case errors.As(err, &role) && errors.As(role.Err, &absent):
		return &Error{Problem: fmt.Sprintf("profile %s of %s: there is no profile %s, which assumes the role %s (source_profile)",
			e.profile, files, role.Profile, role.RoleARN),
			Cure: "write it there, or name another", Err: err}
	case errors.As(err, &role):
		return &Error{Problem: fmt.Sprintf("profile %s of %s: profile %s, which assumes the role %s (source_profile), has no credentials",
			e.profile, files, role.Profile, role.RoleARN),
			Cure: "add keys, role_arn with source_profile, sso_session or credential_process to it", Err: err}
	case errors.As(err, &arn):
		return &Error{Problem: fmt.Sprintf("profile %s of %s has %s without role_arn", arn.Profile, files, arn.Type),
			Cure: "add role_arn to it", Err: err}
	case errors.As(err, &load):
		return &Error{Problem: load.Filename + " cannot be used: " + oneLine(load.Err.Error()), Cure: "correct it", Err: err}
	case strings.Contains(err.Error(), half):
		_, name, _ := strings.Cut(err.Error(), half)
		return &Error{Problem: "profile " + oneLine(name) + " of " + files + " has one half of a pair of keys",
			Cure: "write both aws_access_key_id and aws_secret_access_key, or neither", Err: err}
	}
	return &Error{Problem: fmt.Sprintf("profile %s of %s cannot be used: %s", e.profile, files, oneLine(err.Error())),
		Cure: "correct it", Err: err}
}

// failed makes an Error of an error of the source.
func (s *source) failed(err error) *Error {
	var own *Error
	if errors.As(err, &own) {
		return own
	}
	why, away := reason(err)
	if s.ends == ofProcess && errors.As(err, new(*exec.ExitError)) {
		away = true
	}
	if s.unnamed {
		return &Error{Problem: "no credentials were found", Cure: s.lastly(err, why), Err: err}
	}
	for _, secret := range s.secrets {
		if secret != "" {
			why = strings.ReplaceAll(why, secret, "(hidden)")
		}
	}
	return &Error{Problem: s.how + " cannot be had: " + why, Cure: s.cure, Away: away, Err: err}
}

// reason is the essence of an error of the SDK.
func reason(err error) (why string, away bool) {
	var (
		at      *url.Error
		answer  *smithyhttp.ResponseError
		api     smithy.APIError
		status  interface{ HTTPStatusCode() int }
		network net.Error
		syntax  *json.SyntaxError
		kind    *json.UnmarshalTypeError
		program *processcreds.ProviderError
		host    string
	)
	if errors.As(err, &answer) && answer.Response != nil && answer.Response.Response != nil && answer.Response.Request != nil {
		host = answer.Response.Request.URL.Host + ": "
	}
	switch {
	case errors.As(err, &syntax), errors.As(err, &kind):
		return host + "the answer is no such JSON", false // the answer may have secrets in it
	case errors.As(err, &api):
		why = oneLine(api.ErrorCode() + " " + api.ErrorMessage())
		if errors.As(err, &status) && status.HTTPStatusCode() != 0 {
			why = fmt.Sprintf("%d %s", status.HTTPStatusCode(), why)
		}
		return host + shortened(why), true
	case errors.As(err, &at):
		if u, err := url.Parse(at.URL); err == nil {
			host = u.Host + ": "
		}
		if errors.As(at.Err, &network) && network.Timeout() {
			return host + "no answer", true
		}
		return host + oneLine(at.Err.Error()), true
	case errors.As(err, &status) && status.HTTPStatusCode() != 0:
		return fmt.Sprintf("%s%d %s", host, status.HTTPStatusCode(), http.StatusText(status.HTTPStatusCode())), true
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return host + "no answer", true
	}
	if errors.As(err, &program) {
		err = program.Err
	}
	return shortened(strings.TrimPrefix(oneLine(err.Error()), "failed to refresh cached credentials, ")), false
}

// shortened keeps a whole page from filling the line.
func shortened(s string) string {
	const most = 300
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// lastly is the cure where nothing is named. Most machines are not instances, and their users need not
// hear of metadata.
func (s *source) lastly(err error, why string) string {
	var status interface{ HTTPStatusCode() int }
	switch {
	case strings.EqualFold(os.Getenv("AWS_EC2_METADATA_DISABLED"), "true"):
		return giveKeys
	case errors.As(err, &status) && status.HTTPStatusCode() == http.StatusNotFound:
		return giveKeys + ", or give this instance a role: it has none"
	case errors.As(err, &status) && status.HTTPStatusCode() != 0:
		return giveKeys + " (of the instance's role: " + why + ")"
	}
	return giveKeys
}
