package main

import (
	_ "github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	_ "helm.sh/helm/v4/pkg/action"
	_ "helm.sh/helm/v4/pkg/chart/loader"
	_ "helm.sh/helm/v4/pkg/registry"
	_ "helm.sh/helm/v4/pkg/downloader"
	_ "helm.sh/helm/v4/pkg/storage/driver"
	_ "k8s.io/client-go/kubernetes"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/apimachinery/pkg/api/errors"
	_ "github.com/google/go-cmp/cmp"
	_ "sigs.k8s.io/yaml"
	_ "github.com/Masterminds/semver/v3"
)

func main() {}
