package upgrade

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"helm.sh/helm/v4/pkg/action"
	hchart "helm.sh/helm/v4/pkg/chart"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/registry"
	release "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/repo/v1"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
)

// chart fetches and loads the chart at exactly the version that is asked for.
func (j *job) chart() (*chart.Chart, error) {
	from := j.Chart
	if j.Repository != "" {
		from = j.Repository + " " + j.Chart
	}
	path, err := j.locate(j.Version)
	if notThere(err) && registry.IsOCI(j.Chart) { // a tag is taken as it is spelled, with its v or without
		if other, is := strings.CutPrefix(j.Version, "v"); is {
			path, err = j.locate(other)
		} else {
			path, err = j.locate("v" + j.Version)
		}
	}
	switch {
	case notThere(err):
		return nil, refuse(answer.ChartNotFound, "there is no version %s of chart %s", j.Version, from)
	case err != nil && filepath.IsAbs(j.Chart) && j.Repository == "":
		return nil, refuse(answer.ChartNotFound, "there is no chart at %s", j.Chart)
	case err != nil:
		return nil, refuseWith(err, answer.ChartUnavailable, "chart %s could not be fetched: %s", from, kindOf(err))
	}
	c, err := loader.Load(path)
	if err != nil {
		return nil, refuseWith(err, answer.ChartInvalid, "chart %s cannot be loaded", from)
	}
	if err := installable(c, from, j.Version); err != nil {
		return nil, err
	}
	if err := action.CheckDependencies(c, dependencies(c)); err != nil {
		return nil, refuseWith(err, answer.ChartInvalid, "chart %s lacks a dependency", from)
	}
	return c, nil
}

// installable tells whether a chart that was loaded is the one that was asked for,
// and can be installed.
func installable(c *chart.Chart, from, version string) error {
	switch {
	case c.Metadata == nil:
		return refuse(answer.ChartInvalid, "chart %s has no Chart.yaml", from)
	case !sameVersion(c.Metadata.Version, version):
		return refuse(answer.ChartNotFound, "chart %s has version %s, not %s", from, c.Metadata.Version, version)
	case c.Metadata.Type == "library":
		return refuse(answer.ChartInvalid, "chart %s is a library: it cannot be installed", from)
	}
	return nil
}

func (j *job) locate(version string) (string, error) {
	up := action.NewUpgrade(j.cfg)
	up.Version, up.RepoURL, up.PlainHTTP = version, j.Repository, j.PlainHTTP
	return up.LocateChart(j.Chart, j.settings)
}

// notThere tells whether a repository, a registry or the file system answered
// that it has no such chart.
func notThere(err error) bool {
	var answered *errcode.ErrorResponse
	return errors.Is(err, repo.ChartNotFoundError{}) || errors.Is(err, errdef.ErrNotFound) || errors.Is(err, fs.ErrNotExist) ||
		errors.As(err, &answered) && answered.StatusCode == http.StatusNotFound
}

// dependencies are those that the chart names in Chart.yaml.
func dependencies(c *chart.Chart) []hchart.Dependency {
	var list []hchart.Dependency
	for _, d := range c.Metadata.Dependencies {
		list = append(list, d)
	}
	return list
}

func sameVersion(a, b string) bool {
	x, err := semver.NewVersion(a)
	y, err2 := semver.NewVersion(b)
	return a == b || err == nil && err2 == nil && x.Equal(y)
}

// check finds what keeps the chart from this cluster and these values.
func (j *job) check(c *chart.Chart, h history) error {
	if want := c.Metadata.KubeVersion; want != "" {
		server, err := j.client.Discovery().ServerVersion()
		if err != nil {
			return fmt.Errorf("read the API server's version: %w", err)
		}
		if !chartutil.IsCompatibleRange(want, server.GitVersion) {
			return refuse(answer.Incompatible, "version %s needs Kubernetes %s, this is %s", c.Metadata.Version, want, server.GitVersion)
		}
	}
	kept, err := util.CoalesceValues(c, values(h))
	if err != nil {
		return refuseWith(err, answer.ValuesInvalid, "the release's values do not fit the chart's")
	}
	if err := util.ValidateAgainstSchema(c, kept); err != nil {
		return refuseWith(err, answer.ValuesInvalid, "the release's values break the new chart's schema%s", schemaPlaces(err))
	}
	return nil
}

// values are what the user gave: they are kept, and the new chart's own defaults
// fill the rest.
func values(h history) map[string]any {
	if d := h.deployed(); d != nil {
		return d.Config
	}
	return h.last().Config
}

// crdChanges names the definitions in crds/ that differ from the release's:
// Helm installs them once and never touches them again.
// https://helm.sh/docs/chart_best_practices/custom_resource_definitions/
func crdChanges(was *release.Release, c *chart.Chart) []answer.Warning {
	before := map[string]string{}
	for _, f := range was.Chart.CRDObjects() {
		before[f.Filename] = string(f.File.Data)
	}
	var changed []string
	for _, f := range c.CRDObjects() {
		if before[f.Filename] != string(f.File.Data) {
			changed = append(changed, f.Filename)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	slices.Sort(changed)
	return []answer.Warning{{Code: answer.WarningCRDs,
		Detail: "Helm does not upgrade the chart's crds/, apply them by hand: " + strings.Join(changed, ", ")}}
}
