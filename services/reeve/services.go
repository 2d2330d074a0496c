package reeve

import (
	"context"
	"fmt"

	"github.com/reeve-pipeline/reeve/pkg/ledger"
	"github.com/reeve-pipeline/reeve/pkg/service"
	reevev1 "github.com/reeve-pipeline/reeve/proto/reeve/v1"
	"github.com/reeve-pipeline/reeve/services/compilation"
	"github.com/reeve-pipeline/reeve/services/deploy"
	"github.com/reeve-pipeline/reeve/services/fanin"
	"github.com/reeve-pipeline/reeve/services/fetch"
	"github.com/reeve-pipeline/reeve/services/gateway"
	"github.com/reeve-pipeline/reeve/services/pagination"
	"github.com/reeve-pipeline/reeve/services/reduce"
	"github.com/reeve-pipeline/reeve/services/sweeper"
)

// part is one service of the all-in-one.
type part struct {
	name string
	wire service.Wire
}

// stages are the services that work off a stage each, in the order of the
// pipelines.
func stages() []part {
	return []part{
		{fetch.Name, fetch.Wire},
		{pagination.Name, pagination.Wire},
		{reduce.Name, reduce.Wire},
		{compilation.Name, compilation.Wire},
		{deploy.Name, deploy.Wire},
	}
}

// Services lists the wires of all services, as processes of their own have
// them.
func Services() []service.Wire {
	return wires(append(stages(), part{fanin.Name, fanin.Wire}, part{sweeper.Name, sweeper.Wire}, part{gateway.Name, gateway.Wire}))
}

// allInOne lists all services, with what they can give each other in one
// process: the gateway calls the sweeper.
func allInOne(st State) []part {
	var s *sweeper.Sweeper
	open := func(ctx context.Context, env *service.Env) (_ service.Runner, err error) {
		if s, err = sweeper.Open(ctx, env); err != nil {
			return nil, err
		}
		return s.Run, nil
	}
	sweep := func(ctx context.Context, dryRun bool) (*reevev1.SweepResponse, error) {
		r, err := s.Sweep(ctx, dryRun)
		if err != nil {
			return nil, err
		}
		if !r.Led {
			return nil, fmt.Errorf("%w: another sweep is going on; try again in a moment", ledger.ErrConflict)
		}
		out := &reevev1.SweepResponse{LookedAt: r.LookedAt, Seconds: r.Took.Seconds()}
		for _, f := range r.Findings {
			out.Findings = append(out.Findings, &reevev1.SweepFinding{Run: f.Run, Stage: f.Stage, Item: f.Item, Found: f.Found, Done: f.Done, Detail: f.Detail})
		}
		return out, nil
	}
	return append(stages(),
		part{fanin.Name, fanin.Wire},
		part{sweeper.Name, open},
		part{gateway.Name, gateway.WireWith(gateway.Parts{Info: st.info(), Sweep: sweep})},
	)
}

func wires(parts []part) []service.Wire {
	var all []service.Wire
	for _, p := range parts {
		all = append(all, service.As(p.name, p.wire))
	}
	return all
}

func names(parts []part) []string {
	var all []string
	for _, p := range parts {
		all = append(all, p.name)
	}
	return all
}
