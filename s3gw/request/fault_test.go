package request

import (
	"encoding/xml"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	// A client gets code, message, resource and the request's id, with the status of the code, and
	// nothing of the cause. A HEAD gets no body.
	e := Of(fs.ErrPermission, "NoSuchKey", "there is no %q", "a<b")
	for method, body := range map[string]bool{http.MethodGet: true, http.MethodHead: false} {
		w := httptest.NewRecorder()
		e.Write(w, httptest.NewRequest(method, "/bucket/a%3Cb", nil), "17")
		var got errorDocument
		if w.Code != http.StatusNotFound || w.Header().Get("X-Amz-Request-Id") != "17" || (w.Body.Len() > 0) != body {
			t.Errorf("%s: %d %v %q", method, w.Code, w.Header(), w.Body)
		}
		if !body {
			continue
		}
		if err := xml.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		got.XMLName = xml.Name{}
		if want := (errorDocument{Code: "NoSuchKey", Message: `there is no "a<b"`, Resource: "/bucket/a<b", RequestID: "17"}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		if strings.Contains(w.Body.String(), "permission") {
			t.Error("the client is told of the cause")
		}
	}
	if !errors.Is(e, fs.ErrPermission) || !strings.Contains(e.Error(), "permission") {
		t.Errorf("the log is not told of the cause: %v", e)
	}
}

func TestStatus(t *testing.T) {
	// Each code has Amazon's status. An unknown code is a bad request, and an error may set another
	// status.
	for code, want := range map[string]int{"AccessDenied": 403, "NoSuchBucket": 404, "PreconditionFailed": 412, "InvalidRange": 416, "SlowDown": 503,
		"NotImplemented": 501, "InternalError": 500, "MissingContentLength": 411, "MethodNotAllowed": 405, "OperationAborted": 409, "InvalidArgument": 400} {
		if got := New(code, "x").HTTPStatus(); got != want {
			t.Errorf("%s: %d, want %d", code, got, want)
		}
	}
	if got := (&Error{Code: "X", Status: 418}).HTTPStatus(); got != 418 {
		t.Error(got)
	}
}
