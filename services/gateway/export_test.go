package gateway

import "github.com/reeve-pipeline/reeve/proto/reeve/v1/reevev1connect"

// API returns the methods without HTTP.
func API(g *Gateway) reevev1connect.ReeveServiceHandler { return &api{Gateway: g} }
