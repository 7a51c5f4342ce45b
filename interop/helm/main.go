// Decodes Kubernetes manifests strictly: an unknown field and a duplicate field are errors.
//
// Usage: helm template ... | helm-manifests KIND...
//
// The manifests must have exactly these kinds, in any order. A kind that is named twice must occur twice.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

func main() {
	kinds, err := decode(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	wanted := slices.Clone(os.Args[1:])
	slices.Sort(wanted)
	slices.Sort(kinds)
	if !slices.Equal(wanted, kinds) {
		fmt.Fprintf(os.Stderr, "the manifests have the kinds %v, but must have %v\n", kinds, wanted)
		os.Exit(1)
	}
	fmt.Printf("%d manifests\n", len(kinds))
}

func decode(from io.Reader) ([]string, error) {
	if err := monitoring.AddToScheme(scheme.Scheme); err != nil {
		return nil, err
	}
	codecs := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict)
	documents := yaml.NewYAMLReader(bufio.NewReader(from))
	var kinds []string
	for {
		document, err := documents.Read()
		if err == io.EOF {
			return kinds, nil
		}
		if err != nil {
			return nil, err
		}
		object := map[string]any{}
		if err := yaml.Unmarshal(document, &object); err != nil {
			return nil, err
		}
		if len(object) == 0 {
			continue
		}
		_, kind, err := codecs.UniversalDeserializer().Decode(document, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("%v: %w\n%s", object["kind"], err, document)
		}
		kinds = append(kinds, kind.Kind)
	}
}
