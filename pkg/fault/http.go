package fault

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// maxWait caps what a server may ask for.
	maxWait = time.Hour
	// politeWait is the wait after 429 when the server names none.
	politeWait = time.Minute
)

// httpCodes are the statuses that do not follow the rule of their hundred:
// 4xx permanent, 5xx transient.
var httpCodes = map[int]Class{
	http.StatusRequestTimeout:          ClassTransient,
	http.StatusConflict:                ClassTransient,
	http.StatusMisdirectedRequest:      ClassTransient,
	http.StatusLocked:                  ClassTransient,
	http.StatusTooEarly:                ClassTransient,
	http.StatusTooManyRequests:         ClassRateLimited,
	http.StatusNotImplemented:          ClassPermanent,
	http.StatusHTTPVersionNotSupported: ClassPermanent,
}

// HTTP marks err by the status of the response it is about. A Retry-After
// header, in seconds or as a date, makes any failure that passes rate limited,
// and 403 too, which some servers answer to haste; it is capped at an hour. A
// nil err is taken to be the status itself. Below 300 err is returned as it is.
func HTTP(code int, header http.Header, err error) error {
	if code < 300 {
		return err
	}
	if err == nil {
		err = fmt.Errorf("%d %s", code, strings.ToLower(http.StatusText(code)))
	}
	class, ok := httpCodes[code]
	switch {
	case ok:
	case code >= 500:
		class = ClassTransient
	default:
		class = ClassPermanent
	}
	wait, asked := retryAfter(header, time.Now())
	switch {
	case asked && (class != ClassPermanent || code == http.StatusForbidden):
		return RetryAfter(err, wait)
	case class == ClassRateLimited:
		return RetryAfter(err, politeWait)
	default:
		return mark(err, class, 0)
	}
}

// retryAfter reads the header of that name. A date is compared with the
// server's own clock if it tells it.
func retryAfter(header http.Header, now time.Time) (time.Duration, bool) {
	value := strings.TrimSpace(header.Get("Retry-After"))
	if seconds, err := strconv.ParseInt(value, 10, 64); err == nil && seconds >= 0 {
		return time.Duration(min(seconds, int64(maxWait/time.Second))) * time.Second, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	if server, err := http.ParseTime(header.Get("Date")); err == nil {
		now = server
	}
	return min(max(at.Sub(now), 0), maxWait), true
}

// s3Codes are the answers of an object store whose class the status does not
// tell. The store is one of Reeve's own parts: what an operator mends is infra.
var s3Codes = map[string]Class{
	"AccessDenied":              ClassInfra,
	"ExpiredToken":              ClassInfra,
	"InvalidAccessKeyId":        ClassInfra,
	"InvalidToken":              ClassInfra,
	"NoSuchBucket":              ClassInfra,
	"QuotaExceeded":             ClassInfra,
	"RequestTimeTooSkewed":      ClassInfra,
	"SignatureDoesNotMatch":     ClassInfra,
	"SlowDown":                  ClassInfra,
	"XMinioStorageFull":         ClassInfra,
	"EntityTooLarge":            ClassPermanent,
	"InvalidArgument":           ClassPermanent,
	"InvalidObjectName":         ClassPermanent,
	"KeyTooLongError":           ClassPermanent,
	"NoSuchKey":                 ClassPermanent,
	"XMinioInvalidObjectName":   ClassPermanent,
	"BadDigest":                 ClassTransient,
	"XAmzContentSHA256Mismatch": ClassTransient,
}

// S3 marks err by the error code and status that Reeve's object store answered
// with. Without a status it is the network's trouble, and so infra.
func S3(code string, status int, err error) error {
	class, ok := s3Codes[code]
	switch {
	case ok:
	case status == http.StatusRequestTimeout, status == http.StatusTooManyRequests:
		class = ClassInfra
	case status >= 400 && status < 500:
		class = ClassTransient
	default:
		class = ClassInfra
	}
	return mark(err, class, 0)
}
