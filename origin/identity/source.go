package identity

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"unicode"

	"github.com/aws/aws-sdk-go-v2/config"
)

// source is where the chain will find an identity.
type source struct {
	how          string // in words
	cure         string // for any failure of this source
	ends         ending
	unnamed      bool     // no setting names it: it is tried last
	plain        bool     // it assumes no role
	token        string   // sent to STS, or to a container's agent
	profileFirst bool     // the profile goes before keys in variables
	ofFiles      bool     // it is in the files of profiles
	secrets      []string // that must not be printed
}

// ending is the kind of the chain's end: the first link, which needs no other.
type ending int

const (
	ofKeys ending = iota
	ofWebIdentity
	ofSSO
	ofLogin
	ofProcess
	ofContainer
	ofInstance
)

const (
	instanceRole = "the instance's role"
	relativeURI  = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"
	fullURI      = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
	giveKeys     = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or anonymous: true for a public bucket"
)

// source says where the chain ends, in the order of the SDK, or returns the error that something is
// named and cannot be used.
func (e *environment) source() (*source, *Error) {
	s, failed := e.chosen()
	if failed != nil {
		return nil, failed
	}
	fallen := s.plain && (s.ends == ofContainer || s.ends == ofInstance) // though there may be a profile
	s.ofFiles = s.ofFiles && !fallen
	s.secrets = append(s.secrets, s.token)
	for _, name := range []string{"AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN"} {
		s.secrets = append(s.secrets, os.Getenv(name))
	}
	return s, nil
}

func (e *environment) chosen() (*source, *Error) {
	if e.by != "" && takesVariables(&e.shared) {
		s, failed := e.ofProfile(&e.shared)
		if s != nil {
			s.profileFirst, s.ofFiles = true, true
		}
		return s, failed
	}
	switch {
	case e.env.Credentials.HasKeys():
		return &source{how: "the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" + e.before(), plain: true,
			cure: "check those variables"}, nil
	case e.env.WebIdentityTokenFilePath != "":
		if e.env.RoleARN == "" {
			return nil, &Error{Problem: "AWS_WEB_IDENTITY_TOKEN_FILE is set without AWS_ROLE_ARN", Cure: "set both, or neither"}
		}
		s, failed := webIdentity("", e.env.RoleARN, e.env.WebIdentityTokenFilePath, "AWS_WEB_IDENTITY_TOKEN_FILE")
		if s != nil {
			s.how += e.before()
		}
		return s, failed
	case e.by == "" && e.env.RoleARN != "":
		return nil, &Error{Problem: "AWS_ROLE_ARN is set without AWS_WEB_IDENTITY_TOKEN_FILE",
			Cure: "set both, or name the role in a profile (role_arn and source_profile)"}
	}
	if failed := e.unread(); failed != nil {
		return nil, failed
	}
	s, failed := e.ofProfile(&e.shared)
	if s != nil {
		s.ofFiles = true
	}
	return s, failed
}

// before says that a profile is named but not used.
func (e *environment) before() string {
	if e.by == "" {
		return ""
	}
	return " (which goes before " + e.by + "=" + e.profile + ")"
}

// takesVariables reports whether a profile assumes a role with the keys in variables.
func takesVariables(p *config.SharedConfig) bool {
	for ; p.Source != nil; p = p.Source {
	}
	return p.CredentialSource == "Environment"
}

// ofProfile follows a profile as the SDK does, through its source profiles.
func (e *environment) ofProfile(p *config.SharedConfig) (*source, *Error) {
	s, failed := e.base(p)
	if failed != nil || p.RoleARN == "" || s.ends == ofWebIdentity && p.Source == nil {
		return s, failed
	}
	if p.MFASerial != "" {
		return nil, &Error{Problem: e.of(p) + ": the role " + p.RoleARN + " wants a code of mfa_serial, and nobody is there to type it",
			Cure: "take a role without, or keys that a program with the code fetched (aws configure export-credentials)"}
	}
	s.how = fmt.Sprintf("%s: the role %s, assumed by %s", e.of(p), p.RoleARN, s.how)
	s.plain, s.unnamed = false, false
	s.cure = "check that the role exists, that whoever assumes it has sts:AssumeRole, and that the role's trust policy names him"
	return s, nil
}

// base is the identity of a profile before it assumes its role.
func (e *environment) base(p *config.SharedConfig) (*source, *Error) {
	of := e.of(p)
	switch {
	case p.Source != nil:
		return e.ofProfile(p.Source)
	case p.Credentials.HasKeys():
		return &source{how: of, plain: true, cure: "check its keys"}, nil
	case p.CredentialSource != "":
		return e.credentialSource(p)
	case p.WebIdentityTokenFile != "":
		return webIdentity(of+": ", p.RoleARN, p.WebIdentityTokenFile, of)
	case p.SSOSessionName != "" || p.SSOStartURL != "" || p.SSOAccountID != "" || p.SSORoleName != "" || p.SSORegion != "":
		how := fmt.Sprintf("%s: SSO, the role %s of the account %s", of, p.SSORoleName, p.SSOAccountID)
		return &source{how: how, plain: true, ends: ofSSO,
			cure: "log in with aws sso login --profile " + p.Profile + ", as the user and with the HOME that hearth runs with"}, nil
	case p.LoginSession != "":
		return &source{how: of + ": aws login", plain: true, ends: ofLogin,
			cure: "log in with aws login --profile " + p.Profile + ", as the user and with the HOME that hearth runs with"}, nil
	case p.CredentialProcess != "":
		return &source{how: of + ": its credential_process", plain: true, ends: ofProcess,
			cure: "run that command as the user that hearth runs as: it has to end with 0 and print JSON with Version 1"}, nil
	case e.by != "" || p.RoleARN != "":
		return nil, e.lacks(p)
	case named(relativeURI, fullURI) != "":
		return container()
	}
	named := os.Getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT")
	s := &source{how: instanceRole, plain: true, ends: ofInstance, unnamed: named == "",
		cure: "give the instance a role, or " + giveKeys}
	if named != "" {
		s.how += " (AWS_EC2_METADATA_SERVICE_ENDPOINT)"
		s.cure = "correct or unset AWS_EC2_METADATA_SERVICE_ENDPOINT"
	}
	return s, nil
}

// lacks is the error of a profile that is named and has no identity.
func (e *environment) lacks(p *config.SharedConfig) *Error {
	switch {
	case p.RoleARN != "":
		return &Error{Problem: e.of(p) + " does not say who assumes its role " + p.RoleARN,
			Cure: "add source_profile, credential_source (Environment, Ec2InstanceMetadata or EcsContainer) or web_identity_token_file to it"}
	case e.shared.Profile == "": // cannot happen: a named profile exists here
		return e.missing()
	}
	return &Error{Problem: e.of(p) + ", which " + e.by + " names, has no credentials",
		Cure: "add keys, role_arn with source_profile, sso_session or credential_process to it, or unset " + e.by + " to take a container's or the instance's role"}
}

// credentialSource is the identity that assumes the role of a profile with a credential_source.
func (e *environment) credentialSource(p *config.SharedConfig) (*source, *Error) {
	const variables = "the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
	switch p.CredentialSource {
	case "Environment":
		if !e.env.Credentials.HasKeys() {
			return nil, &Error{Problem: e.of(p) + " has credential_source = Environment, and AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set",
				Cure: "set them"}
		}
		return &source{how: variables, plain: true}, nil
	case "EcsContainer":
		if named(relativeURI, fullURI) == "" {
			return nil, &Error{Problem: e.of(p) + " has credential_source = EcsContainer, and " + relativeURI + " and " + fullURI + " are not set",
				Cure: "set one of them, as a container's agent does, or name another source"}
		}
		return container()
	case "Ec2InstanceMetadata":
		return &source{how: instanceRole, plain: true, ends: ofInstance}, nil
	}
	return nil, &Error{Problem: fmt.Sprintf("%s has credential_source = %s, which is none", e.of(p), p.CredentialSource),
		Cure: "write Environment, Ec2InstanceMetadata or EcsContainer"}
}

// of names a profile and its file.
func (e *environment) of(p *config.SharedConfig) string {
	name := cmp.Or(p.Profile, e.profile)
	file, ok := strings.CutPrefix(p.Credentials.Source, "SharedConfigCredentials: ")
	if !ok || file == "" {
		file = e.files[1]
		if _, err := e.load(context.Background(), name, e.files[:1], []string{}); !absent(err, name) {
			file = e.files[0]
		}
	}
	return "profile " + name + " of " + file
}

// webIdentity is a role that is assumed with a token; by says what names the token's file.
func webIdentity(of, role, file, by string) (*source, *Error) {
	token, failed := readToken(file, by)
	if failed != nil {
		return nil, failed
	}
	how := fmt.Sprintf("%sthe role %s, by the web identity in %s", of, role, file)
	return &source{how: how, plain: true, ends: ofWebIdentity, token: token,
		cure: "check that the role exists, and that its trust policy names the token's issuer, audience and subject"}, nil
}

// container is an agent that gives the container a role.
func container() (*source, *Error) {
	s := &source{how: "the container's role", plain: true, ends: ofContainer}
	s.token = os.Getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN")
	by := named(relativeURI, fullURI)
	s.how += " (" + by + ")"
	s.cure = "check " + by + " and the agent's token, or unset it to take another identity"
	if file := os.Getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); file != "" {
		var failed *Error
		if s.token, failed = readToken(file, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); failed != nil {
			return nil, failed
		}
	}
	return s, nil
}

// readToken reads a token's file, without white space at its ends.
func readToken(file, by string) (string, *Error) {
	text, err := os.ReadFile(file)
	token := strings.TrimSpace(string(text))
	switch {
	case err != nil:
		return "", &Error{Problem: fmt.Sprintf("the token file %s, which %s names, cannot be read: %v", file, by, cause(err)),
			Cure: "check the file's name, that it is mounted here, and that hearth's user may read it", Err: err}
	case token == "":
		return "", &Error{Problem: fmt.Sprintf("the token file %s, which %s names, is empty", file, by),
			Cure: "have it written anew"}
	case strings.ContainsFunc(token, unicode.IsControl):
		return "", &Error{Problem: fmt.Sprintf("the token file %s, which %s names, has a line break or another control character inside",
			file, by),
			Cure: "write the token in one line"}
	}
	return token, nil
}
