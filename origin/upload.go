package origin

import (
	"net/http"

	signv4 "github.com/minio/minio-go/v7/pkg/signer"
)

// Sign returns the request signed with an access key for a region, by minio-go's signer. It takes any
// method and header, and a body that the signature does not cover (UNSIGNED-PAYLOAD), so that it can be
// streamed. Requests of an Origin use the cheaper signer of package sign.
func Sign(r *http.Request, access, secret, region string) *http.Request {
	r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	return signv4.SignV4(*r, access, secret, "", region)
}
