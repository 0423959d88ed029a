package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"unicode"

	"github.com/aws/aws-sdk-go-v2/config"
)

// Settings are what the AWS variables and the profile in force say of a bucket, except the identity.
type Settings struct {
	// Endpoint of S3, Region to sign for, CAFile of certificates; "" means that nothing is set.
	Endpoint, Region, CAFile string
}

// Look reads the Settings; variables go before the profile. An error is about the profile; the settings
// from variables are returned with it.
func Look(ctx context.Context) (Settings, error) {
	e, failed := look(ctx)
	s := Settings{Region: cmp.Or(e.env.Region, e.shared.Region),
		CAFile: cmp.Or(e.env.CustomCABundle, e.shared.CustomCABundle)}
	ignored, _, _ := config.GetIgnoreConfiguredEndpoints(ctx, []any{e.env, e.shared}) // what is no truth value is none
	if !ignored {
		ofVariable, _, _ := e.env.GetServiceBaseEndpoint(ctx, "S3")   // none: it is ""
		ofProfile, _, _ := e.shared.GetServiceBaseEndpoint(ctx, "S3") // the same
		s.Endpoint = cmp.Or(ofVariable, ofProfile, e.env.BaseEndpoint, e.shared.BaseEndpoint)
	}
	if failed != nil {
		return s, failed
	}
	return s, nil
}

// environment is what may name an identity.
type environment struct {
	env     config.EnvConfig
	profile string // the one in force
	by      string // the variable that names it; "": none does
	files   [2]string
	shared  config.SharedConfig // of the profile; none: its zero
}

// look reads the environment, and returns it even with an error.
func look(ctx context.Context) (*environment, *Error) {
	e := &environment{}
	if err := clean(); err != nil {
		return e, err
	}
	var err error
	if e.env, err = config.NewEnvConfig(); err != nil {
		return e, &Error{Problem: err.Error(), Cure: "correct that variable, or unset it"}
	}
	e.profile, e.files = cmp.Or(e.env.SharedConfigProfile, config.DefaultSharedConfigProfile), profileFiles()
	e.by = named("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
	if failed := halves(); failed != nil {
		return e, failed
	}
	e.shared, err = e.load(ctx, e.profile, e.files[:1], e.files[1:])
	switch {
	case err == nil, absent(err, e.profile) && e.by == "": // no variable named it
		return e, nil
	case absent(err, e.profile):
		return e, e.missing()
	}
	return e, e.wrong(err)
}

// absent reports whether an error says that a profile does not exist. It may be about another profile
// that this one needs.
func absent(err error, profile string) bool {
	var of config.SharedConfigProfileNotExistError
	return errors.As(err, &of) && of.Profile == profile && !errors.As(err, new(config.SharedConfigAssumeRoleError))
}

func (e *environment) load(ctx context.Context, profile string, files, keys []string) (config.SharedConfig, error) {
	return config.LoadSharedConfigProfile(ctx, profile, func(o *config.LoadSharedConfigOptions) {
		o.ConfigFiles, o.CredentialsFiles = files, keys
	})
}

// profileFiles are the shared config and the shared credentials file.
func profileFiles() [2]string {
	return [2]string{cmp.Or(os.Getenv("AWS_CONFIG_FILE"), config.DefaultSharedConfigFilename()),
		cmp.Or(os.Getenv("AWS_SHARED_CREDENTIALS_FILE"), config.DefaultSharedCredentialsFilename())}
}

// named is the first variable that is set.
func named(variables ...string) string {
	for _, name := range variables {
		if os.Getenv(name) != "" {
			return name
		}
	}
	return ""
}

// clean trims white space off the variables that the chain reads. It sets them anew, since the SDK
// reads them itself, in many places, and so does a credential process.
func clean() *Error {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY",
		"AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE",
		"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME",
		relativeURI, fullURI, "AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
		"AWS_EC2_METADATA_DISABLED", "AWS_EC2_METADATA_V1_DISABLED",
		"AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE",
		"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_STS",
		"AWS_ENDPOINT_URL_SSO", "AWS_ENDPOINT_URL_SSO_OIDC", "AWS_ENDPOINT_URL_SIGNIN",
		"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "AWS_CA_BUNDLE"} {
		value := os.Getenv(name)
		short := strings.TrimSpace(value)
		switch {
		case value == "":
		case short == "":
			return &Error{Problem: name + " holds nothing but white space", Cure: "give it its value, or unset it"}
		case strings.ContainsFunc(short, unicode.IsControl),
			strings.HasSuffix(name, "REGION") && strings.ContainsAny(short, " /"):
			return &Error{Problem: name + " has a line break or another sign inside that cannot be in it",
				Cure: "write its value in one line, without quotes"}
		case short != value:
			if err := os.Setenv(name, short); err != nil {
				return &Error{Problem: name + " ends in white space", Cure: "write it without", Err: err}
			}
		}
	}
	return nil
}

// halves finds variables that need another one which is not set.
func halves() *Error {
	access, secret := named("AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY"), named("AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY")
	switch {
	case access != "" && secret == "":
		return &Error{Problem: access + " is set without AWS_SECRET_ACCESS_KEY", Cure: "set both, or neither"}
	case access == "" && secret != "":
		return &Error{Problem: secret + " is set without AWS_ACCESS_KEY_ID", Cure: "set both, or neither"}
	case access == "" && named("AWS_SESSION_TOKEN") != "":
		return &Error{Problem: "AWS_SESSION_TOKEN is set without AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
			Cure: "set all three, or unset it"}
	}
	return nil
}

// missing is the error of a profile that is named and does not exist, with the reason where a file
// cannot be read.
func (e *environment) missing() *Error {
	failed := &Error{Problem: fmt.Sprintf("there is no profile %s, which %s names, in %s", e.profile, e.by, e.either()),
		Cure: fmt.Sprintf("write it there, as [profile %s] or in the second file as [%s], or unset %s (aws configure list-profiles shows them)", e.profile, e.profile, e.by)}
	for _, name := range e.files {
		if err := readable(name); err != nil && (!errors.Is(err, fs.ErrNotExist) || e.isNamed(name)) {
			failed.Problem += fmt.Sprintf("; %s cannot be read: %v", name, cause(err))
		}
	}
	return failed
}

// unread is the error of a file of profiles that a variable names and that cannot be read.
func (e *environment) unread() *Error {
	for i, name := range e.files {
		if err := readable(name); err != nil && e.isNamed(name) {
			variable := [2]string{"AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"}[i]
			return &Error{Problem: fmt.Sprintf("%s, which %s names, cannot be read: %v", name, variable, cause(err)),
				Cure: "name a file that can be read, or unset " + variable, Err: err}
		}
	}
	return nil
}

// either names both files.
func (e *environment) either() string {
	if e.files[0] == e.files[1] {
		return e.files[0]
	}
	return e.files[0] + " or " + e.files[1]
}

func (e *environment) isNamed(file string) bool {
	return file == os.Getenv("AWS_CONFIG_FILE") || file == os.Getenv("AWS_SHARED_CREDENTIALS_FILE")
}

func readable(name string) error {
	f, err := os.Open(name)
	if err == nil {
		_ = f.Close() // nothing was written
	}
	return err
}

// cause is an error of a file without the file's name, which the message has already.
func cause(err error) error {
	var of *fs.PathError
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}
