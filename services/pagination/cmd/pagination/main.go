// Command pagination runs the pagination stage until it is told to stop.
package main

import (
	"os"

	"github.com/reeve-pipeline/reeve/pkg/pdf"
	"github.com/reeve-pipeline/reeve/pkg/service"
	"github.com/reeve-pipeline/reeve/services/pagination"
)

func main() {
	pdf.ChildMain()
	os.Exit(service.Main(pagination.Name, pagination.Wire))
}
