package gateway

import (
	"time"

	"github.com/reeve-pipeline/reeve/proto/reeve/v1/reevev1connect"
)

// SetFresh sets how long a look at a site's manifest holds.
func (s *Search) SetFresh(d time.Duration) { s.fresh = d }

// API returns the methods without HTTP.
func API(g *Gateway) reevev1connect.ReeveServiceHandler { return &api{Gateway: g} }
