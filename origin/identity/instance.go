package identity

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
)

// instance asks an instance's metadata, and notes what the SDK does not tell: the role's name, and
// when its credentials really end.
type instance struct {
	client  *imds.Client
	role    string
	expires time.Time
}

// GetMetadata passes a question on.
func (i *instance) GetMetadata(ctx context.Context, in *imds.GetMetadataInput, options ...func(*imds.Options)) (*imds.GetMetadataOutput, error) {
	out, err := i.client.GetMetadata(ctx, in, options...)
	role := strings.Trim(strings.TrimPrefix(in.Path, "/iam/security-credentials"), "/")
	if err != nil || role == "" {
		return out, err
	}
	text, err := io.ReadAll(out.Content) // the SDK has read all of it before
	out.Content = io.NopCloser(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	var document struct{ Expiration time.Time }
	if json.Unmarshal(text, &document) == nil { // else the SDK says what is wrong
		i.role, i.expires = role, document.Expiration
	}
	return out, nil
}
