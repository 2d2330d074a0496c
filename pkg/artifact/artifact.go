// Package artifact keeps objects in one bucket of an S3 store. A write is
// atomic: readers see the old bytes or the new ones, whole. Every object
// carries the SHA-256 of its bytes, so that a write that changes nothing is
// free and a reader can check what it got.
//
// Errors carry a class of package fault: a store that is not reachable, denies
// access or is out of order is [fault.ClassInfra], for then a task is not to
// blame. A missing object is [fs.ErrNotExist].
package artifact

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"iter"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

const (
	// digest is the user metadata that holds an object's SHA-256 in hex.
	digest = "Sha256"
	// inMemory is how much of a stream is measured in memory; more goes to a
	// temporary file.
	inMemory = 1 << 20
	// inParts is the size from which an object is sent in parts, in bytes.
	inParts = 1 << 30
	// tries is how often one request is sent before its error is believed.
	tries = 3
	// maxKey is the longest key that S3 takes, in bytes.
	maxKey = 1024
)

// ErrDigest says that an object's bytes are not those that were asked for.
var ErrDigest = errors.New("digest differs")

// Store is one bucket. It is safe for concurrent use.
type Store struct {
	s3     minio.Core
	where  string // endpoint URL, for messages
	bucket string
}

// Open connects to the store and creates the bucket if it is missing. The
// error names the endpoint and the setting to look at.
func Open(ctx context.Context, c Config) (*Store, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	host, secure := c.host()
	transport, err := minio.DefaultTransport(secure)
	if err != nil {
		return nil, fmt.Errorf("s3: %w", err)
	}
	transport.MaxIdleConnsPerHost = 64
	client, err := minio.New(host, &minio.Options{
		Creds:      c.credentials(transport),
		Secure:     secure,
		Region:     c.Region,
		Transport:  transport,
		MaxRetries: tries,
	})
	if err != nil {
		return nil, fmt.Errorf("s3.endpoint %s: %w", c.Endpoint, err)
	}
	s := &Store{s3: minio.Core{Client: client}, where: client.EndpointURL().String(), bucket: c.Bucket}

	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	found, err := client.BucketExists(ctx, c.Bucket)
	if err == nil && !found {
		err = client.MakeBucket(ctx, c.Bucket, minio.MakeBucketOptions{Region: c.Region})
		if code := minio.ToErrorResponse(err).Code; code == "BucketAlreadyOwnedByYou" || code == "BucketAlreadyExists" {
			err = s.Check(ctx)
		}
	}
	if err != nil {
		return nil, s.failed(ctx, "open", "", err)
	}
	return s, nil
}

// credentials are the configured keys, or else what the environment or the
// machine's role offers.
func (c Config) credentials(t http.RoundTripper) *credentials.Credentials {
	if c.AccessKey != "" {
		return credentials.NewStaticV4(c.AccessKey, c.SecretKey.Reveal(), "")
	}
	return credentials.NewChainCredentials([]credentials.Provider{
		&credentials.EnvAWS{},
		&credentials.IAM{Client: &http.Client{Transport: t, Timeout: 5 * time.Second}},
	})
}

// Check reports whether the bucket can be reached.
func (s *Store) Check(ctx context.Context) error {
	found, err := s.s3.BucketExists(ctx, s.bucket)
	if err == nil && !found {
		err = fmt.Errorf("bucket %s is gone", s.bucket)
	}
	return s.failed(ctx, "check", "", err)
}

// Put stores what r holds under the key, replacing what was there. Size is its
// length in bytes, or negative when it is not known; a reader that ends
// elsewhere is an error. A reader that can seek is read twice, from where it
// stands; any other is measured in a temporary file first. Storing the same
// bytes again sends nothing. Errors of r are returned as they are.
func (s *Store) Put(ctx context.Context, key string, r io.Reader, size int64, contentType string) (stage.Artifact, error) {
	if err := checkKey(key); err != nil {
		return stage.Artifact{}, err
	}
	body, a, release, err := measure(r)
	if err != nil {
		return stage.Artifact{}, fmt.Errorf("read what is to be kept as %s: %w", key, err)
	}
	defer release()
	if size >= 0 && a.Size != size {
		return stage.Artifact{}, fmt.Errorf("keep %s: %d bytes came, %d were announced", key, a.Size, size)
	}
	a.Key = key

	switch there, err := s.Stat(ctx, key); {
	case err == nil && there.SHA256 == a.SHA256 && there.Size == a.Size:
		return there, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return stage.Artifact{}, err
	}
	opts := minio.PutObjectOptions{ContentType: contentType, UserMetadata: map[string]string{digest: a.SHA256}}
	var info minio.UploadInfo
	if a.Size < inParts {
		// The request is signed with the digest, which the store checks.
		opts.DisableContentSha256 = true // not once more, chunk by chunk
		info, err = s.s3.PutObject(ctx, s.bucket, key, body, a.Size, "", a.SHA256, opts)
	} else {
		info, err = s.s3.Client.PutObject(ctx, s.bucket, key, body, a.Size, opts)
	}
	if err != nil {
		return stage.Artifact{}, s.failed(ctx, "keep", key, err)
	}
	a.ETag = info.ETag
	return a, nil
}

// PutFile stores a file's content under the key, as [Store.Put] does.
func (s *Store) PutFile(ctx context.Context, key, path, contentType string) (stage.Artifact, error) {
	f, err := os.Open(path)
	if err != nil {
		return stage.Artifact{}, fmt.Errorf("keep %s: %w", key, err)
	}
	defer f.Close()
	return s.Put(ctx, key, f, -1, contentType)
}

// Copy stores an object's bytes under another key too, without fetching them.
// The error wraps [fs.ErrNotExist] when there is no such object.
func (s *Store) Copy(ctx context.Context, from, to string) (stage.Artifact, error) {
	if err := checkKey(to); err != nil {
		return stage.Artifact{}, err
	}
	a, err := s.Stat(ctx, from)
	if err != nil {
		return stage.Artifact{}, err
	}
	if there, err := s.Stat(ctx, to); err == nil && there.SHA256 == a.SHA256 && there.Size == a.Size && a.SHA256 != "" {
		return there, nil
	}
	info, err := s.s3.ComposeObject(ctx, minio.CopyDestOptions{Bucket: s.bucket, Object: to},
		minio.CopySrcOptions{Bucket: s.bucket, Object: from, MatchETag: a.ETag})
	if err != nil {
		return stage.Artifact{}, s.failed(ctx, "copy "+from+" to", to, err)
	}
	a.Key, a.ETag = to, info.ETag
	return a, nil
}

// Get opens an object for reading. The error wraps [fs.ErrNotExist] when there
// is none.
func (s *Store) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	body, _, _, err := s.s3.GetObject(ctx, s.bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return nil, s.failed(ctx, "get", key, err)
	}
	return &reader{body, func(err error) error { return s.failed(ctx, "get", key, err) }}, nil
}

// reader gives the errors of a download their name and class.
type reader struct {
	io.ReadCloser
	failed func(error) error
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = r.failed(err)
	}
	return n, err
}

// GetFile downloads an object to a file, which is there whole or not at all.
// Want is the SHA-256 it must have, in hex: an empty one is not checked, another
// than the bytes have is an [ErrDigest].
func (s *Store) GetFile(ctx context.Context, key, path, want string) error {
	body, err := s.Get(ctx, key)
	if err != nil {
		return err
	}
	defer body.Close()
	f, err := os.CreateTemp(filepath.Dir(path), ".get-*")
	if err != nil {
		return fmt.Errorf("get %s: %w", key, err)
	}
	sum := newSum()
	_, err = io.Copy(io.MultiWriter(f, sum), body)
	if err == nil {
		err = sum.check(key, want)
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// ReadAll returns an object of at most limit bytes. A larger one is a
// permanent error. Want is the SHA-256 it must have, as for [Store.GetFile].
func (s *Store) ReadAll(ctx context.Context, key, want string, limit int64) ([]byte, error) {
	body, err := s.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fault.Permanentf("get %s: it is larger than the %d bytes allowed", key, limit)
	}
	sum := newSum()
	sum.Write(data)
	if err := sum.check(key, want); err != nil {
		return nil, err
	}
	return data, nil
}

// Stat describes an object. SHA256 is empty when another program wrote it. The
// error wraps [fs.ErrNotExist] when there is none.
func (s *Store) Stat(ctx context.Context, key string) (stage.Artifact, error) {
	if err := checkKey(key); err != nil {
		return stage.Artifact{}, err
	}
	info, err := s.s3.StatObject(ctx, s.bucket, key, minio.StatObjectOptions{})
	if err != nil {
		return stage.Artifact{}, s.failed(ctx, "stat", key, err)
	}
	return stage.Artifact{Key: key, Size: info.Size, SHA256: info.UserMetadata[digest], ETag: info.ETag}, nil
}

// List yields the objects whose keys begin with the prefix, in the order of
// their keys and without their SHA256, which a listing does not tell. An error
// ends it.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[stage.Artifact, error] {
	return func(yield func(stage.Artifact, error) bool) {
		for o := range s.s3.ListObjectsIter(ctx, s.bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
			if o.Err != nil {
				yield(stage.Artifact{}, s.failed(ctx, "list", prefix, o.Err))
				return
			}
			if !yield(stage.Artifact{Key: o.Key, Size: o.Size, ETag: o.ETag}, nil) {
				return
			}
		}
	}
}

// Remove deletes an object. One that is not there is no error.
func (s *Store) Remove(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	err := s.failed(ctx, "remove", key, s.s3.RemoveObject(ctx, s.bucket, key, minio.RemoveObjectOptions{}))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// failed names what was done and classes the error by its type and status.
func (s *Store) failed(ctx context.Context, verb, key string, err error) error {
	if err == nil {
		return nil
	}
	what := fmt.Sprintf("%s s3 bucket %s at %s", verb, s.bucket, s.where)
	if key != "" {
		what = fmt.Sprintf("%s %s (s3 bucket %s at %s)", verb, key, s.bucket, s.where)
	}
	resp, answered := errors.AsType[minio.ErrorResponse](err)
	switch {
	case ctx.Err() != nil && !answered:
		return fmt.Errorf("%s: %w", what, errors.Join(context.Cause(ctx), err))
	case !answered, resp.StatusCode == 0:
		return fault.Infra(fmt.Errorf("%s: no answer; check s3.endpoint: %w", what, err))
	case resp.Code == "NoSuchBucket":
		return fault.Infra(fmt.Errorf("%s: the bucket does not exist; check s3.bucket", what))
	case resp.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s: %w", what, fs.ErrNotExist)
	case resp.StatusCode == http.StatusForbidden, resp.StatusCode == http.StatusUnauthorized:
		return fault.Infra(fmt.Errorf("%s: access denied (%s); check s3.access_key, s3.secret_key and the bucket's policy", what, resp.Code))
	case resp.StatusCode >= 500, resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode == http.StatusRequestTimeout:
		return fault.Infra(fmt.Errorf("%s: %s: %w", what, resp.Code, err))
	default:
		return fmt.Errorf("%s: %s: %w", what, resp.Code, err)
	}
}

// checkKey refuses keys that some store would read as another key.
func checkKey(key string) error {
	if !fs.ValidPath(key) || key == "." || len(key) > maxKey {
		return fault.Permanentf("object key %q: keys are slash-separated names of together at most %d bytes, without empty, \".\" or \"..\" parts", key, maxKey)
	}
	return nil
}

// measure reads r to its end for its size and digest, and returns a reader of
// the same bytes. The caller calls release when it is done with that.
func measure(r io.Reader) (body io.Reader, a stage.Artifact, release func(), err error) {
	release = func() {}
	sum := newSum()
	seeker, ok := r.(io.ReadSeeker)
	if !ok {
		seeker, release, err = spool(r)
		if err != nil {
			return nil, a, nil, err
		}
	}
	start, err := seeker.Seek(0, io.SeekCurrent)
	if err == nil {
		a.Size, err = io.Copy(sum, seeker)
	}
	if err == nil {
		_, err = seeker.Seek(start, io.SeekStart)
	}
	if err != nil {
		release()
		return nil, a, nil, err
	}
	a.SHA256 = sum.String()
	if at, ok := seeker.(io.ReaderAt); ok {
		// A section of its own lets the client send large objects in parallel.
		return io.NewSectionReader(at, start, a.Size), a, release, nil
	}
	return seeker, a, release, nil
}

// spool copies a stream to where it can be read again.
func spool(r io.Reader) (io.ReadSeeker, func(), error) {
	head, err := io.ReadAll(io.LimitReader(r, inMemory))
	if err != nil {
		return nil, nil, err
	}
	if len(head) < inMemory {
		return bytes.NewReader(head), func() {}, nil
	}
	f, err := os.CreateTemp("", "reeve-put-*")
	if err != nil {
		return nil, nil, err
	}
	release := func() {
		_ = f.Close() // read only from here on
		_ = os.Remove(f.Name())
	}
	_, err = f.Write(head)
	if err == nil {
		_, err = io.Copy(f, r)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	return f, release, nil
}

// sum is a running SHA-256.
type sum struct{ hash.Hash }

func newSum() sum { return sum{sha256.New()} }

func (s sum) String() string { return hex.EncodeToString(s.Sum(nil)) }

func (s sum) check(key, want string) error {
	if got := s.String(); want != "" && got != want {
		return fault.Permanent(fmt.Errorf("get %s: %w: it has sha256 %s, not %s", key, ErrDigest, got, want))
	}
	return nil
}
