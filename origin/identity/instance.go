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

// instance asks for an instance's metadata. It notes what the SDK does not tell: the role's name,
// and when the credentials really end.
type instance struct {
	client  *imds.Client
	role    string
	expires time.Time
}

// GetMetadata passes a request on to the SDK's client. Of an answer with credentials it notes the
// role and the expiry.
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
	if json.Unmarshal(text, &document) == nil { // otherwise the SDK says what is wrong
		i.role, i.expires = role, document.Expiration
	}
	return out, nil
}
