package s3d

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/s3response"
	"golang.org/x/sys/unix"
)

// backend is the gateway's POSIX backend, which never syncs, made durable: an
// object whose upload was answered with success survives a power cut. An
// upload cut off by one may leave the old object, the new one, or a torn one
// whose digest tells.
type backend struct {
	*posix.Posix
	root    string // folder of the buckets
	sidecar string // folder of the metadata, or empty when the files carry it
	sync    bool
}

// CreateBucket makes a bucket durable.
func (b *backend) CreateBucket(ctx context.Context, in *s3.CreateBucketInput, acl []byte) error {
	if err := b.Posix.CreateBucket(ctx, in, acl); err != nil || !b.sync {
		return err
	}
	return errors.Join(syncPath(filepath.Join(b.root, *in.Bucket)), syncPath(b.root))
}

// PutObject makes an object durable.
func (b *backend) PutObject(ctx context.Context, in s3response.PutObjectInput) (s3response.PutObjectOutput, error) {
	settle := b.settle(in.Bucket, in.Key)
	out, err := b.Posix.PutObject(ctx, in)
	return out, settle(err)
}

// CompleteMultipartUpload makes an object durable that came in parts.
func (b *backend) CompleteMultipartUpload(ctx context.Context, in *s3.CompleteMultipartUploadInput) (s3response.CompleteMultipartUploadResult, string, error) {
	settle := b.settle(in.Bucket, in.Key)
	out, version, err := b.Posix.CompleteMultipartUpload(ctx, in)
	return out, version, settle(err)
}

// CopyObject makes a copy durable.
func (b *backend) CopyObject(ctx context.Context, in s3response.CopyObjectInput) (s3response.CopyObjectOutput, error) {
	settle := b.settle(in.Bucket, in.Key)
	out, err := b.Posix.CopyObject(ctx, in)
	return out, settle(err)
}

// settle is called before an object is written; what it returns is called
// after. That syncs the object's file, the folder it is in, and the parents of
// the folders that were not there before.
func (b *backend) settle(bucket, key *string) func(error) error {
	if !b.sync || bucket == nil || key == nil {
		return func(err error) error { return err }
	}
	file := filepath.Join(b.root, *bucket, *key)
	last := filepath.Dir(file) // the highest folder that gets a new entry
	for last != b.root {
		if _, err := os.Lstat(last); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		last = filepath.Dir(last)
	}
	return func(err error) error {
		if err != nil {
			return err
		}
		if b.sidecar != "" {
			return syncAll(b.sidecar)
		}
		for path := file; ; path = filepath.Dir(path) {
			// Somebody may have removed the object since: then so be it.
			if err := syncPath(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if path == last || path == b.root {
				return nil
			}
		}
	}
}

// syncPath makes a file's content, or a folder's entries, durable.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// syncAll makes everything on the file system of a folder durable.
func syncAll(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}
