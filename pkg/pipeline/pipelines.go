package pipeline

import (
	"maps"
	"slices"
	"time"
)

// The stages, each defined once for all pipelines that it is part of.
var (
	fetch          = stage("fetch", "fetch", "document", CPU, Stage{Reads: ReadsDocuments, Timeout: 30 * time.Minute, MaxAttempts: 5, Backoff: 2 * time.Second, Concurrency: 8, MaxInFlight: 256})
	pagination     = stage("pagination", "pagination", "document", CPU, Stage{Timeout: 10 * time.Minute, MaxAttempts: 3, Concurrency: 2, MaxInFlight: 256})
	lineDetection  = stage("line_detection", "linedetection", "pages", GPU, Stage{Timeout: 15 * time.Minute, MaxAttempts: 3, Concurrency: 1, MaxInFlight: 64})
	lineExtraction = stage("line_extraction", "lineextraction", "pages", CPU, Stage{Timeout: 15 * time.Minute, MaxAttempts: 3, Concurrency: 2, MaxInFlight: 256})
	ocr            = stage("ocr", "ocr", "pages", GPU, Stage{Timeout: 30 * time.Minute, MaxAttempts: 3, Concurrency: 1, MaxInFlight: 64})
	reduce         = stage("reduce", "reduce", "document", CPU, Stage{Reads: ReadsJoined, Timeout: 10 * time.Minute, MaxAttempts: 3, Concurrency: 4, MaxInFlight: 256})
	extraction     = stage("extraction", "extraction", "document", CPU, Stage{Timeout: 30 * time.Minute, MaxAttempts: 3, Concurrency: 1, MaxInFlight: 1})
	compilation    = stage("compilation", "compilation", "site", CPU, Stage{Reads: ReadsDocuments, Timeout: time.Hour, MaxAttempts: 3, Concurrency: 1, MaxInFlight: 16})
	deploy         = stage("deploy", "deploy", "site", CPU, Stage{Timeout: 15 * time.Minute, MaxAttempts: 8, Backoff: 2 * time.Second, BackoffMax: 10 * time.Minute, Concurrency: 2, MaxInFlight: 16})
	scrape         = stage("scrape", "scrape", "lead", CPU, Stage{Timeout: time.Minute, MaxAttempts: 5, Concurrency: 8, MaxInFlight: 256})
	intel          = stage("intel", "llm", "lead", CPU, Stage{Timeout: time.Minute, MaxAttempts: 5, Concurrency: 8, MaxInFlight: 256})
	strategy       = stage("strategy", "llm", "lead", CPU, Stage{Timeout: time.Minute, MaxAttempts: 5, Concurrency: 8, MaxInFlight: 256})
	subject        = stage("subject", "llm", "lead", CPU, Stage{Timeout: time.Minute, MaxAttempts: 5, Concurrency: 8, MaxInFlight: 256})
	messaging      = stage("messaging", "llm", "lead", CPU, Stage{Timeout: time.Minute, MaxAttempts: 5, Concurrency: 8, MaxInFlight: 256})
)

// stage fills in what a definition leaves at its default.
func stage(name, service, item string, on Resource, s Stage) Stage {
	s.Name, s.Service, s.Item, s.Resource = name, service, item, on
	if s.Backoff == 0 {
		s.Backoff = time.Second
	}
	if s.BackoffMax == 0 {
		s.BackoffMax = 5 * time.Minute
	}
	if s.Silence == 0 {
		s.Silence = 2 * time.Minute
	}
	return s
}

// civic turns a town's meeting PDFs into a searchable site. The site goes live
// with its text, and, where the run's settings ask for entities, again with these.
var civic = &Pipeline{
	Name: "civic", Version: 1, Subject: "site", Root: fetch.Name, Conflict: Refuse,
	Stages: []Stage{fetch, pagination, lineDetection, lineExtraction, ocr, reduce, extraction, compilation, deploy},
	Edges: []Edge{
		{Kind: Spawn, From: "fetch", To: "fetch"},
		{Kind: Each, From: "fetch", To: "pagination"},
		{Kind: Spawn, From: "pagination", To: "line_detection"},
		{Kind: Each, From: "line_detection", To: "line_extraction"},
		{Kind: Each, From: "line_extraction", To: "ocr"},
		{Kind: Join, From: "ocr", To: "reduce", MaxFailedPct: 100},
		{Kind: All, From: "reduce", To: "compilation", Item: "text", MinSuccess: 1, MaxFailedPct: 100},
		{Kind: Each, From: "compilation", To: "deploy"},
		{Kind: Each, From: "reduce", To: "extraction", When: "entities"},
		{Kind: All, From: "extraction", To: "compilation", Item: "entities", When: "entities", MaxFailedPct: 100},
	},
	Settings: ocrSettings(map[string]any{
		// skip: text layers only; pages without one are recorded as such.
		// auto: these pages are recognised, by the workers of the OCR stages.
		"ocr_mode": "skip",
		// entities: extract people, places and votes after the site is live.
		"entities": false,
		// force: process every document again, changed or not.
		"force": false,
	}),
	Choices: map[string][]string{
		"ocr_mode": {"skip", "auto"}, "encoding": {"unicode", "wylie"}, "line_images": {"none", "files"},
	},
}

// ocrSettings adds the settings that the OCR stages read.
func ocrSettings(settings map[string]any) map[string]any {
	maps.Copy(settings, map[string]any{
		// version: above 0, keeps what this run makes apart from an earlier one's.
		"version": 0,
		// profile: a named set of numbers for finding lines; empty: Reeve's own.
		"profile": "",
		// use_tps: flatten bent lines. merge_lines: join fragments; nil: as the profile has it.
		"use_tps": false, "merge_lines": nil,
		// line_images: none, or files: keep a picture of every line.
		"line_images": "none",
		// encoding of the text: unicode or wylie.
		"encoding": "unicode",
		// k_factor, bbox_tolerance: how far around a line is cut; 0: as the profile has it.
		"k_factor": 0.0, "bbox_tolerance": 0.0,
	})
	return settings
}

// volumes turns scanned volumes into Parquet and volume results.
var volumes = &Pipeline{
	Name: "volumes", Version: 1, Subject: "job", Root: pagination.Name, Conflict: Refuse,
	Stages: []Stage{pagination, lineDetection, lineExtraction, ocr, reduce},
	Edges: []Edge{
		{Kind: Spawn, From: "pagination", To: "line_detection"},
		{Kind: Each, From: "line_detection", To: "line_extraction"},
		{Kind: Each, From: "line_extraction", To: "ocr"},
		{Kind: Join, From: "ocr", To: "reduce", MaxFailedPct: 100},
	},
	Settings: ocrSettings(map[string]any{"force": false}),
	Choices:  map[string][]string{"encoding": {"unicode", "wylie"}, "line_images": {"none", "files"}},
}

// leads turns a list of companies into finished letters.
var leads = &Pipeline{
	Name: "leads", Version: 1, Subject: "batch", Root: scrape.Name, Conflict: Refuse,
	Stages: []Stage{scrape, intel, strategy, subject, messaging},
	Edges: []Edge{
		{Kind: Each, From: "scrape", To: "intel"},
		{Kind: Each, From: "intel", To: "strategy"},
		{Kind: Each, From: "strategy", To: "subject"},
		{Kind: Each, From: "subject", To: "messaging"},
	},
	Settings: map[string]any{"force": false},
}

// Pipelines lists every pipeline of this build. The slice is the caller's.
func Pipelines() []*Pipeline {
	return []*Pipeline{civic, volumes, leads}
}

// Named returns the pipeline of that name.
func Named(name string) (*Pipeline, bool) {
	all := Pipelines()
	i := slices.IndexFunc(all, func(p *Pipeline) bool { return p.Name == name })
	if i < 0 {
		return nil, false
	}
	return all[i], true
}

// Stages lists every stage of every pipeline once, in the pipelines' order.
func Stages() []Stage {
	var all []Stage
	for _, p := range Pipelines() {
		for _, s := range p.Stages {
			if !slices.ContainsFunc(all, func(t Stage) bool { return t.Name == s.Name }) {
				all = append(all, s)
			}
		}
	}
	return all
}

// StageNamed returns the stage of that name, whichever pipeline it is part of.
func StageNamed(name string) (Stage, bool) {
	all := Stages()
	i := slices.IndexFunc(all, func(s Stage) bool { return s.Name == name })
	if i < 0 {
		return Stage{}, false
	}
	return all[i], true
}
