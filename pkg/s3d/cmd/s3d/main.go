// Command s3d serves the S3 API over a folder.
package main

import (
	"os"

	"github.com/reeve-pipeline/reeve/pkg/s3d"
)

func main() { os.Exit(s3d.Main(os.Args[1:])) }
