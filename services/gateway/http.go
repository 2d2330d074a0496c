package gateway

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"html"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/zap"

	"github.com/reeve-pipeline/reeve/proto/reeve/v1/reevev1connect"
)

// maxRequest is the largest request taken, in bytes.
const maxRequest = 1 << 20

// api is a Gateway as the generated code wants it, with the sign that ends the
// streams when the process stops.
type api struct {
	*Gateway
	stopping <-chan struct{}
}

// Handler serves the API. Streams end when stopping is closed. A request must
// carry the token when there is one; when there is none its Host must name
// this machine, so that no web page reaches the API through a name of its own.
func (g *Gateway) Handler(token string, stopping <-chan struct{}) http.Handler {
	a := &api{Gateway: g, stopping: stopping}
	path, connectHandler := reevev1connect.NewReeveServiceHandler(a,
		connect.WithReadMaxBytes(maxRequest), connect.WithCodec(codecs[0]), connect.WithCodec(codecs[1]),
		connect.WithRecover(func(_ context.Context, spec connect.Spec, _ http.Header, p any) error {
			g.Log.Error("request panicked", zap.String("procedure", spec.Procedure), zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			return connect.NewError(connect.CodeInternal, errors.New("a bug in the gateway; its log has the details"))
		}))
	mux := http.NewServeMux()
	mux.Handle(path, guard(token, http.MaxBytesHandler(connectHandler, maxRequest)))
	mux.HandleFunc("GET /{$}", front)
	return mux
}

// guard lets requests through that may use the API.
func guard(token string, next http.Handler) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var err error
		if token != "" {
			given, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			if !bearer || subtle.ConstantTimeCompare([]byte(given), []byte(token)) != 1 {
				err = connect.NewError(connect.CodeUnauthenticated, errors.New("no or wrong token: send `Authorization: Bearer TOKEN` (reeve: --token or REEVE_TOKEN)"))
			}
		} else if host := hostOf(r.Host); !loopback(host) {
			err = connect.NewError(connect.CodePermissionDenied, fmt.Errorf("host %q is not this machine: without a token the API answers only to localhost", host))
		}
		if err != nil {
			_ = refuse.Write(w, r, err) // the client has gone
			return
		}
		next.ServeHTTP(w, r)
	})
}

func hostOf(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.Trim(hostport, "[]")
}

// front says what this is to whoever opens it in a browser.
func front(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"service":"reeve","api":%q}`+"\n", "/"+reevev1connect.ReeveServiceName+"/")
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprintf(w, `<!doctype html><html lang="en"><meta charset="utf-8"><title>Reeve</title>
<body style="font:16px/1.5 system-ui;max-width:44em;margin:3em auto;padding:0 1em">
<h1>Reeve</h1>
<p>This is the API of a running Reeve. Use it with the <code>reeve</code> command, or post JSON to it:</p>
<pre>curl -H 'Content-Type: application/json' -d '{}' http://%s/%s/ListRuns</pre>
</body></html>
`, html.EscapeString(r.Host), reevev1connect.ReeveServiceName)
}

// serve serves until ctx ends, then lets requests in hand finish under work.
func serve(ctx, work context.Context, l net.Listener, h http.Handler) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{Handler: h, Protocols: protocols, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("api: %w", err)
	case <-ctx.Done():
	}
	if err := srv.Shutdown(work); err != nil {
		return errors.Join(fmt.Errorf("api: %w", err), srv.Close())
	}
	return nil
}
