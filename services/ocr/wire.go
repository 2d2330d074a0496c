package ocr

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path/filepath"

	"github.com/reeve-pipeline/reeve/pkg/artifact"
	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/model"
	"github.com/reeve-pipeline/reeve/pkg/pages"
	"github.com/reeve-pipeline/reeve/pkg/pipeline"
	"github.com/reeve-pipeline/reeve/pkg/service"
)

// Open opens an engine for a model, with the settings' folder of models and
// library filled in. An engine that is an io.Closer is closed at the end.
type Open func(c Config, m model.Manifest) (Engine, error)

// Wire returns the wire that connects the stage to its engines, one for each
// hand, its store and its queue. Models is the folder that is used when none is
// set.
func Wire(models string, open Open) service.Wire {
	return func(ctx context.Context, env *service.Env) (service.Runner, error) {
		c := Defaults()
		if err := env.Load(Name, &c); err != nil {
			return nil, err
		}
		store, err := artifact.Wire(ctx, env)
		if err != nil {
			return nil, err
		}
		c.Models = cmp.Or(c.Models, models)
		c.Library = cmp.Or(c.Library, filepath.Join(c.Models, model.Library))
		m, err := manifest(c)
		if err != nil {
			return nil, err
		}
		s, _ := pipeline.StageNamed(Name)
		engines := make([]Engine, cmp.Or(c.Hands, s.Concurrency))
		for i := range engines {
			if engines[i], err = open(c, m); err != nil {
				return nil, fmt.Errorf("%w; run scripts/models to fetch the library and the default models", err)
			}
			if closer, ok := engines[i].(io.Closer); ok {
				env.OnClose(func(context.Context) error { return closer.Close() })
			}
		}
		images := pages.NewReader(store, c.limits(), int64(c.Memory))
		reader := NewReader(&m, c.BeamBelow, c.BeamWidth)
		return bus.WireStage(env, Name, New(store, images, reader, engines...), len(engines))
	}
}

// manifest returns that of the model that is set.
func manifest(c Config) (model.Manifest, error) {
	catalogue, err := model.Load(c.Models)
	if err != nil {
		return model.Manifest{}, err
	}
	m, err := catalogue.Named(c.Model)
	if err == nil && m.Task != Name {
		err = fmt.Errorf("model %s is for %s", m.Name, m.Task)
	}
	if err != nil {
		return model.Manifest{}, fmt.Errorf("ocr.model: %w", err)
	}
	return m, nil
}
