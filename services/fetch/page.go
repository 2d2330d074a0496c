package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/charset"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
)

// crawl lists the PDFs that a page links to, and the pages that follow it by
// its next link on the same host. Each page's documents are handed on before
// the next page is asked for. An address that answers with a PDF is a site of
// one document.
func (f *Fetcher) crawl(ctx context.Context, start *url.URL, l *listing) error {
	read := map[string]bool{}
	for next := start; next != nil && !read[canonical(next)]; {
		if len(read) == f.MaxPages {
			l.metrics["pages_left_out"]++
			return nil
		}
		read[canonical(next)] = true
		p, err := f.page(ctx, next)
		if err != nil {
			return err
		}
		l.metrics["pages_read"]++
		if p.pdf {
			stem, folders := place(next)
			return l.add(ctx, Spec{Document: civic.Document{Source: canonical(next), Title: stem}}, clues{texts: []string{stem}, folders: folders})
		}
		slices.SortStableFunc(p.links, func(a, b link) int { return strings.Compare(a.source, b.source) })
		for _, k := range p.links {
			if err := l.add(ctx, Spec{Document: civic.Document{Source: k.source, Title: clip(k.title, 300)}}, k.clues); err != nil {
				return err
			}
		}
		next = p.next
	}
	return nil
}

// page is what matters of a web page.
type page struct {
	pdf   bool // it is no page but a document
	links []link
	next  *url.URL
}

// link is a link to a PDF.
type link struct {
	source string
	title  string
	clues  clues
}

// page reads one page of links.
func (f *Fetcher) page(ctx context.Context, u *url.URL) (page, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return page{}, fault.Permanent(err)
	}
	req.Header.Set("Accept", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.5")
	resp, err := f.web.Do(req)
	if err != nil {
		return page{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return page{}, refusal(resp)
	}
	head := make([]byte, sniffed)
	n, err := io.ReadFull(resp.Body, head)
	if n == 0 && err != nil && !errors.Is(err, io.EOF) {
		return page{}, fmt.Errorf("%s: %w", u.Redacted(), err)
	}
	head = head[:n]
	if bytes.Contains(head, magic) {
		return page{pdf: true}, nil
	}
	kind := resp.Header.Get("Content-Type")
	if n > 0 && !isHTML(kind, head) {
		return page{}, fault.Permanentf("%s is no web page: %s that begins with %s", u.Redacted(), kind, looks(head))
	}
	body, err := io.ReadAll(io.LimitReader(io.MultiReader(bytes.NewReader(head), resp.Body), int64(f.MaxPage)+1))
	switch {
	case err != nil:
		return page{}, fmt.Errorf("%s: %w", u.Redacted(), err)
	case len(body) > int(f.MaxPage):
		return page{}, fault.Permanentf("%s is larger than %d bytes; raise fetch.max_page to read it", u.Redacted(), int64(f.MaxPage))
	case len(body) == 0:
		return page{}, nil
	}
	text, err := charset.NewReader(bytes.NewReader(body), kind)
	if err != nil {
		return page{}, fault.Permanentf("%s: %w", u.Redacted(), err)
	}
	doc, err := html.Parse(text)
	if err != nil {
		return page{}, fault.Permanentf("%s: %w", u.Redacted(), err)
	}
	return readPage(doc, resp.Request.URL), nil
}

// reader walks a page from top to bottom and remembers what stands above.
type reader struct {
	page
	base *url.URL
	host string
	// heads are the headings in force, by their rank: title 0, h1 to h6, and
	// 7 for captions and the like.
	heads [8]string
	// columns are the headings of the table at hand.
	columns []string
	seen    map[string]int // index of a source's link
}

// readPage finds the links to PDFs and the next page. at is the page's address.
func readPage(doc *html.Node, at *url.URL) page {
	r := reader{base: at, host: at.Host, seen: map[string]int{}}
	for n := range doc.Descendants() {
		if tag(n) == "base" {
			if u, err := at.Parse(attr(n, "href")); err == nil && attr(n, "href") != "" {
				r.base = u
			}
			break
		}
	}
	r.walk(doc)
	return r.page
}

func (r *reader) walk(n *html.Node) {
	switch tag(n) {
	case "script", "style", "template", "noscript":
		return
	case "title":
		if tag(n.Parent) == "head" { // an icon has one too
			r.head(0, n)
		}
	case "h1", "h2", "h3", "h4", "h5", "h6":
		r.head(int(n.Data[1]-'0'), n)
	case "caption", "summary", "dt", "legend":
		r.head(7, n)
	case "table":
		outer, head := r.columns, r.heads[7]
		r.columns, r.heads[7] = nil, ""
		defer func() { r.columns, r.heads[7] = outer, head }()
	case "tr":
		r.row(n)
	case "a", "area":
		r.link(n, attr(n, "href"))
	case "iframe", "embed":
		r.link(n, attr(n, "src"))
	case "object":
		r.link(n, attr(n, "data"))
	case "link":
		if strings.EqualFold(attr(n, "rel"), "next") {
			r.follow(attr(n, "href"))
		}
	}
	for c := range n.ChildNodes() {
		r.walk(c)
	}
}

// head puts a heading in force and those below it out of force.
func (r *reader) head(rank int, n *html.Node) {
	if s := textOf(n, nil); s != "" {
		r.heads[rank] = s
		clear(r.heads[rank+1:])
	}
}

// row learns a table's columns from a row of headings; a row of one heading
// over the whole table is one itself.
func (r *reader) row(tr *html.Node) {
	var cells []string
	for c := range tr.ChildNodes() {
		switch tag(c) {
		case "th":
			cells = append(cells, textOf(c, nil))
		case "td":
			if attr(c, "colspan") == "" || len(cells) > 0 || hasLink(c) {
				return
			}
			cells = append(cells, textOf(c, nil))
		}
	}
	switch {
	case len(cells) == 1:
		r.heads[7] = cells[0]
	case len(cells) > 1:
		r.columns = cells
	}
}

func hasLink(n *html.Node) bool {
	for d := range n.Descendants() {
		if tag(d) == "a" {
			return true
		}
	}
	return false
}

// link takes in a link if it leads to a PDF or to the next page.
func (r *reader) link(n *html.Node, href string) {
	href = strings.TrimSpace(href)
	u, err := r.base.Parse(href)
	if href == "" || strings.HasPrefix(href, "#") || err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return
	}
	text := textOf(n, nil)
	if r.isNext(n, text) {
		r.follow(href)
		return
	}
	if !leadsToPDF(n, u, text) {
		return
	}
	k := link{source: canonical(u)}
	stem, folders := place(u)
	k.clues = clues{
		texts:   notEmpty(text, attr(n, "title"), attr(n, "aria-label"), attr(n, "download"), r.column(n), stem),
		around:  around(n),
		folders: folders,
	}
	for _, h := range slices.Backward(r.heads[:]) {
		k.clues.heads = append(k.clues.heads, notEmpty(h)...)
	}
	k.title = slices.Concat(k.clues.texts, []string{stem})[0]
	// A document linked twice, from its icon and from its name, is described by
	// the link that says more.
	if i, ok := r.seen[k.source]; ok {
		if len(text) > len(r.links[i].title) || r.links[i].title == stem {
			r.links[i] = k
		}
		return
	}
	r.seen[k.source] = len(r.links)
	r.links = append(r.links, k)
}

var (
	pdfWord  = regexp.MustCompile(`(?i)\bpdf\b`)
	nextWord = regexp.MustCompile(`(?i)^(next|next page|older|older (posts|entries|meetings)|more|siguiente|[›»→>]+|next [›»→>]+)$`)
)

// leadsToPDF reports whether a link says that it leads to a PDF: by the name
// of the file, by its type, or in words.
func leadsToPDF(n *html.Node, u *url.URL, text string) bool {
	if isPDF(u.Path) || isPDF(attr(n, "download")) {
		return true
	}
	for _, values := range u.Query() {
		if slices.ContainsFunc(values, isPDF) {
			return true
		}
	}
	kind := strings.ToLower(attr(n, "type"))
	if kind != "" {
		return strings.HasPrefix(kind, "application/pdf")
	}
	switch strings.ToLower(path.Ext(u.Path)) {
	case ".doc", ".docx", ".htm", ".html", ".jpg", ".mp3", ".mp4", ".png", ".rtf", ".txt", ".xls", ".xlsx", ".zip":
		return false
	}
	if tag(n) != "a" {
		return false
	}
	if pdfWord.MatchString(text) || pdfWord.MatchString(attr(n, "title")) || pdfWord.MatchString(attr(n, "class")) {
		return true
	}
	for d := range n.Descendants() {
		if tag(d) == "img" && (pdfWord.MatchString(attr(d, "alt")) || pdfWord.MatchString(attr(d, "src"))) {
			return true
		}
	}
	return false
}

func (r *reader) isNext(n *html.Node, text string) bool {
	if slices.Contains(strings.Fields(strings.ToLower(attr(n, "rel"))), "next") {
		return true
	}
	return tag(n) == "a" && (nextWord.MatchString(text) || text == "" && nextWord.MatchString(attr(n, "aria-label")))
}

// follow notes the next page, if it is on the same host and the first named.
func (r *reader) follow(href string) {
	u, err := r.base.Parse(href)
	if err != nil || r.next != nil || u.Host != r.host || (u.Scheme != "http" && u.Scheme != "https") || isPDF(u.Path) {
		return
	}
	u.Fragment = ""
	r.next = u
}

// column is the heading of the table's column that a link stands in.
func (r *reader) column(n *html.Node) string {
	cell := n
	for cell != nil && tag(cell) != "td" && tag(cell) != "table" {
		cell = cell.Parent
	}
	if cell == nil || tag(cell) != "td" {
		return ""
	}
	i := 0
	for c := cell.PrevSibling; c != nil; c = c.PrevSibling {
		if tag(c) == "td" || tag(c) == "th" {
			i++
		}
	}
	if i >= len(r.columns) {
		return ""
	}
	return r.columns[i]
}

// around are the texts beside a link: the other cells of its row, or the
// block it stands in, as far as that is short enough to be about it.
func around(n *html.Node) []string {
	for p := n.Parent; p != nil; p = p.Parent {
		switch tag(p) {
		case "tr":
			var cells []string
			for c := range p.ChildNodes() {
				if tag(c) == "td" || tag(c) == "th" {
					cells = append(cells, notEmpty(textOf(c, n))...)
				}
			}
			return cells
		case "li", "p", "dd", "div", "article", "section":
			if s := textOf(p, n); len(s) > 300 {
				return nil
			} else if s != "" {
				return []string{s}
			}
		case "body", "table", "ul", "ol":
			return nil
		}
	}
	return nil
}

// textOf is the text in a node in one line, without what is in the node to
// leave out.
func textOf(n, without *html.Node) string {
	var b strings.Builder
	var walk func(*html.Node)
	walk = func(n *html.Node) {
		switch {
		case n == without || tag(n) == "script" || tag(n) == "style":
			return
		case n.Type == html.TextNode:
			b.WriteString(n.Data)
		case tag(n) == "img":
			b.WriteString(" " + attr(n, "alt") + " ")
		case n.Type == html.ElementNode && !inline(n.Data):
			b.WriteByte(' ')
		}
		for c := range n.ChildNodes() {
			walk(c)
		}
		if n.Type == html.ElementNode && !inline(n.Data) {
			b.WriteByte(' ')
		}
	}
	walk(n)
	return clean(b.String())
}

// inline reports whether an element breaks no word.
func inline(element string) bool {
	switch element {
	case "b", "i", "u", "em", "strong", "font", "small", "sup", "sub", "wbr", "mark":
		return true
	}
	return false
}

// clean makes one line of a text.
func clean(s string) string {
	return strings.Join(strings.Fields(strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "")), " ")
}

// clip shortens a text to at most so many runes.
func clip(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most])
	}
	return s
}

// tag is the name of an element; empty for text and all else.
func tag(n *html.Node) string {
	if n.Type != html.ElementNode {
		return ""
	}
	return n.Data
}

func attr(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return strings.ToValidUTF8(strings.TrimSpace(a.Val), "")
		}
	}
	return ""
}

// notEmpty cleans texts and leaves the empty ones out.
func notEmpty(texts ...string) []string {
	var kept []string
	for _, s := range texts {
		if s = clean(s); s != "" {
			kept = append(kept, s)
		}
	}
	return kept
}
