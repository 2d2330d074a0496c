// Package civic holds what the stages of the civic pipeline hand to each
// other: the site, its documents and their pages. The types are the specs and
// outputs that travel as JSON; the object keys are derived from them alone.
package civic

import (
	"encoding/json"
	"path"
)

// Site is the spec of a run's first task, and of every compilation and deploy:
// the site's registration, as the ledger has it.
type Site struct {
	Subdomain string `json:"subdomain"`
	Name      string `json:"name,omitempty"`
	State     string `json:"state,omitempty"`
	Country   string `json:"country,omitempty"`
	Kind      string `json:"kind,omitempty"`
	// Source is a folder's absolute path, or the URL of a page with links to PDFs.
	Source    string          `json:"source,omitempty"`
	StartYear int             `json:"start_year,omitempty"`
	Lat       string          `json:"lat,omitempty"`
	Lng       string          `json:"lng,omitempty"`
	Extra     json.RawMessage `json:"extra,omitempty"`
	// DeployedVersion is the content digest of the meetings.db that was last
	// deployed, or empty.
	DeployedVersion string `json:"deployed_version,omitempty"`
}

// Kinds of document.
const (
	Minutes = "minutes"
	Agenda  = "agenda"
)

// Document is a document of a site: what fetch lists, what travels through
// pagination and reduce, and the row that compilation reads.
type Document struct {
	// ID is the item's name and a part of object keys: lower-case letters,
	// digits and hyphens, at most 100 bytes. It follows from Source alone, so
	// that a re-posted document keeps it and a second meeting on one day does
	// not share it.
	ID      string `json:"document_id"`
	Kind    string `json:"kind"`    // Minutes or Agenda
	Meeting string `json:"meeting"` // CityCouncil: the board's name run together, as clerk has it
	Date    string `json:"date"`    // YYYY-MM-DD, or empty when nothing tells it
	// Ordinal tells apart documents of one kind, meeting and date: 1, 2, 3 …
	// Once given it stays.
	Ordinal int    `json:"ordinal"`
	Source  string `json:"source"` // URL, or path relative to the site's folder
	Title   string `json:"title,omitempty"`

	// What fetch found. Key is the object that holds the bytes.
	Key          string `json:"key,omitempty"`
	SHA256       string `json:"sha256,omitempty"`
	Size         int64  `json:"size,omitempty"` // bytes
	ETag         string `json:"etag,omitempty"` // of the source's answer
	LastModified string `json:"last_modified,omitempty"`

	// What pagination found.
	Pages *PageCounts `json:"pages,omitempty"`
	// PageTable is the Parquet table of pages; written by pagination with the
	// native text, and as Text by reduce with all text.
	PageTable *Object `json:"page_table,omitempty"`
	Text      *Object `json:"text,omitempty"`

	// Only in the documents that fetch and compilation read as inputs.
	Status      string `json:"status,omitempty"` // pending, done, partial, failed, duplicate
	DuplicateOf string `json:"duplicate_of,omitempty"`
	ErrorClass  string `json:"error_class,omitempty"`
	Version     int    `json:"version,omitempty"`
}

// Object is an object in the store and the digest to check it by.
type Object struct {
	Key    string `json:"key"`
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

// PageCounts counts a document's pages by where their text comes from. The
// first is the sum of the others.
type PageCounts struct {
	Total  int `json:"total"`
	Native int `json:"native"` // a good text layer
	OCR    int `json:"ocr"`    // recognised
	Image  int `json:"image"`  // content without text: needs OCR
	Blank  int `json:"blank"`  // nothing on it
	Failed int `json:"failed"` // could not be read
}

// Sources of a page's text, as in [PageCounts] and the page table.
const (
	SourceNative = "native"
	SourceOCR    = "ocr"
	SourceImage  = "image"
	SourceBlank  = "blank"
	SourceFailed = "failed"
)

// Compiled is what compilation hands to deploy.
type Compiled struct {
	Site Site `json:"site"`
	// Version is the SHA-256 of the database's content, the same whenever the
	// same documents are compiled.
	Version   string `json:"version"`
	Database  Object `json:"database"`
	Manifest  Object `json:"manifest"`
	Documents int    `json:"documents"`
	Minutes   int    `json:"minutes"` // pages
	Agendas   int    `json:"agendas"` // pages
}

// Deployed is what deploy reports.
type Deployed struct {
	Version string   `json:"version"`
	Hooks   []string `json:"hooks"` // those that ran; empty in dev mode
	DryRun  bool     `json:"dry_run"`
}

// Manifest says what a site's meetings.db was made of and holds.
type Manifest struct {
	// Format names how a database is made of documents; a database of another
	// format is not brought up to date but built anew.
	Format    string             `json:"format"`
	Subdomain string             `json:"subdomain"`
	Version   string             `json:"version"`
	Database  Object             `json:"database"`
	Minutes   int                `json:"minutes"` // pages
	Agendas   int                `json:"agendas"` // pages
	Documents []ManifestDocument `json:"documents"`
	// Warnings name documents that are not in the database as they should be.
	Warnings []string `json:"warnings,omitempty"`
	// Previous is the database before this one; it is kept until the next.
	Previous *Object `json:"previous,omitempty"`
}

// ManifestDocument is one document in a [Manifest].
type ManifestDocument struct {
	ID          string `json:"document_id"`
	Kind        string `json:"kind"`
	Meeting     string `json:"meeting"`
	Date        string `json:"date"`
	Ordinal     int    `json:"ordinal"` // as in its pages' paths
	TextSHA256  string `json:"text_sha256"`
	Pages       int    `json:"pages"`
	DuplicateOf string `json:"duplicate_of,omitempty"`
}

// DocumentKey names an object of one version of a document. The version is the
// digest of the source's bytes, so an earlier version stays readable.
func DocumentKey(subdomain, document, sha256, file string) string {
	return path.Join("sites", subdomain, "documents", document, sha256[:min(16, len(sha256))], file)
}

// SiteKey names an object of a site, such as meetings.db.
func SiteKey(subdomain, file string) string {
	return path.Join("sites", subdomain, file)
}
