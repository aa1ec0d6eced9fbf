// Records what upstream's own environment says of expressions.
//
// Reads a file of facts (its format is in tests/data/README.md) and writes it again with the verdicts that upstream gives, so
// that the same file holds what is asked and what is answered. Run it in the folder of upstream's sources:
//
//	cd "$KUBERNETES" && go run "$CEL/tests/recorder/main.go" "$CEL/tests/data/facts.jsonl" > facts.new
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/ext"
	"k8s.io/apimachinery/pkg/api/resource"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// line is an environment, or a question with its verdict.
type line struct {
	Environment string              `json:"environment,omitempty"`
	Schema      json.RawMessage     `json:"schema,omitempty"`
	Self        json.RawMessage     `json:"self,omitempty"`
	OldSelf     json.RawMessage     `json:"oldSelf,omitempty"`
	Optional    bool                `json:"optionalOldSelf,omitempty"`
	Variables   map[string]variable `json:"variables,omitempty"`
	Bindings    bool                `json:"bindings,omitempty"`
	Limit       uint64              `json:"limit,omitempty"`
	In          string              `json:"in,omitempty"`
	Expr        string              `json:"expr,omitempty"`
	Invalid     string              `json:"invalid,omitempty"`
	Program     string              `json:"program,omitempty"`
	Type        string              `json:"type,omitempty"`
	Min         string              `json:"min,omitempty"`
	Max         string              `json:"max,omitempty"`
	Value       string              `json:"value,omitempty"`
	Error       string              `json:"error,omitempty"`
	Cost        string              `json:"cost,omitempty"`
}

type variable struct {
	Type  string          `json:"type"`
	Value json.RawMessage `json:"value"`
}

// setting is an environment that expressions can be compiled in.
type setting struct {
	env       *cel.Env
	estimator *library.CostEstimator
	variables map[string]any
	limit     uint64
}

// sizes takes every path for one from the variable self, as upstream's estimator for schemas.
type sizes struct{ root *apiservercel.DeclType }

func (s *sizes) EstimateSize(node checker.AstNode) *checker.SizeEstimate {
	if s.root == nil || len(node.Path()) == 0 {
		return nil
	}
	at := s.root
	for _, step := range node.Path()[1:] {
		switch step {
		case "@items", "@values":
			at = at.ElemType
		case "@keys":
			at = at.KeyType
		default:
			field, ok := at.Fields[step]
			if !ok {
				return nil
			}
			at = field.Type
		}
		if at == nil {
			return nil
		}
	}
	return &checker.SizeEstimate{Min: 0, Max: uint64(at.MaxElements)}
}

func (s *sizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

// judge allows to get, and fails for objects that are named error.
type judge struct{}

func (judge) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	reason := strings.Join([]string{a.GetVerb(), a.GetPath(), a.GetAPIGroup(), a.GetResource(), a.GetSubresource(), a.GetNamespace(), a.GetName()}, "/")
	switch {
	case a.GetName() == "error":
		return authorizer.DecisionNoOpinion, reason, fmt.Errorf("no answer")
	case a.GetVerb() == "get":
		return authorizer.DecisionAllow, reason, nil
	}
	return authorizer.DecisionDeny, reason, nil
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func decode(data json.RawMessage) any {
	var value any
	must(0, utiljson.Unmarshal(data, &value))
	return value
}

// typeOf reads a type such as map(string, list(int)).
func typeOf(text string) *cel.Type {
	text = strings.TrimSpace(text)
	if inside, ok := strings.CutPrefix(text, "list("); ok {
		return cel.ListType(typeOf(strings.TrimSuffix(inside, ")")))
	}
	if inside, ok := strings.CutPrefix(text, "map("); ok {
		key, value, _ := strings.Cut(strings.TrimSuffix(inside, ")"), ",")
		return cel.MapType(typeOf(key), typeOf(value))
	}
	known := map[string]*cel.Type{
		"bool": cel.BoolType, "int": cel.IntType, "uint": cel.UintType, "double": cel.DoubleType, "string": cel.StringType,
		"bytes": cel.BytesType, "timestamp": cel.TimestampType, "duration": cel.DurationType, "any": cel.AnyType, "authorizer": library.AuthorizerType,
	}
	if found, ok := known[text]; ok {
		return found
	}
	return cel.DynType
}

func prepare(l line) *setting {
	out := &setting{estimator: &library.CostEstimator{SizeEstimator: &sizes{}}, variables: map[string]any{}, limit: 1000000}
	if l.Limit != 0 {
		out.limit = l.Limit
	}
	options := environment.VersionedOptions{IntroducedVersion: version.MajorMinor(1, 0)}
	if l.Schema != nil {
		raw := &spec.Schema{}
		must(0, json.Unmarshal(l.Schema, raw))
		declared := openapi.SchemaDeclType(raw, false)
		if declared == nil {
			return nil
		}
		declared = declared.MaybeAssignTypeName("self_type")
		out.estimator.SizeEstimator = &sizes{root: declared}
		old := declared.CelType()
		if l.Optional {
			old = types.NewOptionalType(old)
		}
		options.EnvOptions = append(options.EnvOptions, cel.Variable("self", declared.CelType()), cel.Variable("oldSelf", old))
		options.DeclTypes = append(options.DeclTypes, declared)
		if l.Self != nil {
			out.variables["self"] = openapi.UnstructuredToVal(decode(l.Self), raw)
		}
		if l.OldSelf != nil {
			val := openapi.UnstructuredToVal(decode(l.OldSelf), raw)
			if l.Optional {
				val = types.OptionalOf(val)
			}
			out.variables["oldSelf"] = val
		} else if l.Optional {
			out.variables["oldSelf"] = types.OptionalNone
		}
	}
	for name, v := range l.Variables {
		options.EnvOptions = append(options.EnvOptions, cel.Variable(name, typeOf(v.Type)))
		if v.Type == "authorizer" {
			out.variables[name] = library.NewAuthorizerVal(nil, judge{})
		} else if v.Value != nil {
			out.variables[name] = decode(v.Value)
		}
	}
	if l.Bindings {
		options.EnvOptions = append(options.EnvOptions, ext.Bindings(ext.BindingsVersion(0)))
	}
	set := must(environment.MustBaseEnvSet(version.MajorMinor(1, 36)).Extend(options))
	out.env = must(set.Env(environment.NewExpressions))
	return out
}

// ask gives a verdict, unless upstream crashes.
func (s *setting) ask(expr string) (out line, ok bool) {
	defer func() { ok = recover() == nil }()
	ast, issues := s.env.Compile(expr)
	if issues != nil && issues.Err() != nil {
		return line{Invalid: issues.String()}, true
	}
	out.Type = cel.FormatCELType(ast.OutputType())
	estimate := must(s.env.EstimateCost(ast, s.estimator))
	out.Min, out.Max = strconv.FormatUint(estimate.Min, 10), strconv.FormatUint(estimate.Max, 10)
	program, err := s.env.Program(ast, cel.CostLimit(s.limit), cel.CostTracking(s.estimator), cel.InterruptCheckFrequency(100))
	if err != nil {
		return line{Program: err.Error()}, true
	}
	value, details, err := program.ContextEval(context.Background(), s.variables)
	if details != nil && details.ActualCost() != nil {
		out.Cost = strconv.FormatUint(*details.ActualCost(), 10)
	}
	if err != nil {
		out.Error = err.Error()
		return out, true
	}
	out.Value = show(value)
	return out, true
}

// show writes a value as a literal.
func show(value ref.Val) string {
	switch v := value.(type) {
	case *apiservercel.Quantity:
		return show(*v)
	case apiservercel.Quantity:
		// In its canonical form, and not as it was read.
		canonical := v.Quantity.DeepCopy()
		canonical.Add(resource.Quantity{})
		return fmt.Sprintf("quantity(%q)", canonical.String())
	case apiservercel.URL:
		return fmt.Sprintf("url(%q)", v.URL.String())
	case apiservercel.IP:
		return fmt.Sprintf("ip(%q)", v.Addr.String())
	case apiservercel.CIDR:
		return fmt.Sprintf("cidr(%q)", v.Prefix.String())
	case apiservercel.Semver:
		return fmt.Sprintf("semver(%q)", v.Version.String())
	case apiservercel.Format:
		return fmt.Sprintf("format(%q)", v.Name)
	case *types.Optional:
		if v.HasValue() {
			return "optional.of(" + show(v.GetValue()) + ")"
		}
		return "optional.none()"
	case traits.Lister:
		var parts []string
		for it := v.Iterator(); it.HasNext() == types.True; {
			parts = append(parts, show(it.Next()))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case traits.Mapper:
		var parts []string
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			parts = append(parts, show(key)+": "+show(v.Get(key)))
		}
		sort.Strings(parts)
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return types.Format(value)
}

func main() {
	file := must(os.Open(os.Args[1]))
	in := bufio.NewScanner(file)
	in.Buffer(make([]byte, 1<<20), 1<<26)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	settings := map[string]*setting{}
	for in.Scan() {
		text := in.Text()
		var l line
		if !strings.HasPrefix(text, "{") || json.Unmarshal([]byte(text), &l) != nil {
			fmt.Fprintln(out, text)
			continue
		}
		if l.Environment != "" {
			if settings[l.Environment] = prepare(l); settings[l.Environment] != nil {
				fmt.Fprintln(out, text)
			}
			continue
		}
		s := settings[l.In]
		if s == nil {
			continue
		}
		answer, ok := s.ask(l.Expr)
		if !ok {
			fmt.Fprintln(os.Stderr, "left out:", l.Expr)
			continue
		}
		answer.In, answer.Expr = l.In, l.Expr
		var data bytes.Buffer
		encoder := json.NewEncoder(&data)
		encoder.SetEscapeHTML(false)
		must(0, encoder.Encode(answer))
		out.Write(data.Bytes())
	}
}
