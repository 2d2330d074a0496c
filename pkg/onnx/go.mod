module github.com/reeve-pipeline/reeve/pkg/onnx

go 1.26.0

require (
	github.com/yalue/onnxruntime_go v1.27.0
	golang.org/x/image v0.47.0
	google.golang.org/protobuf v1.36.12
)

require (
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

// Only the tests use it.
require github.com/reeve-pipeline/reeve/pkg v0.0.0

replace github.com/reeve-pipeline/reeve/pkg => ../

replace github.com/reeve-pipeline/reeve/proto => ../../proto

replace github.com/reeve-pipeline/reeve/migrations => ../../migrations
