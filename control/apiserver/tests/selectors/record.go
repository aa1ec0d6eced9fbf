// Records what upstream says of selectors of devices when one is written: Kubernetes 1.36 with its default gates.
//
// Reads a file of expressions and writes it again with the answers: "invalid" or "internal" is the detail of the error, "max"
// the cost at most. Those of upstream's own test table come first; the lines with "own" are what else is asked. It is built in
// the folder of upstream's sources, which is $KUBERNETES; $HERE is the absolute path of this folder:
//
//	(cd "$KUBERNETES" && GOFLAGS=-mod=vendor go run "$HERE/record.go" "$HERE/selectors.jsonl") > selectors.new
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"

	"k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

const table = "staging/src/k8s.io/dynamic-resource-allocation/cel/compile_test.go"

// line is an expression with its answer.
type line struct {
	Own      bool   `json:"own,omitempty"`
	Expr     string `json:"expr"`
	Invalid  string `json:"invalid,omitempty"`
	Internal string `json:"internal,omitempty"`
	Max      string `json:"max,omitempty"`
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func upstreams() (found []string) {
	file := must(parser.ParseFile(token.NewFileSet(), table, nil, 0))
	ast.Inspect(file, func(node ast.Node) bool {
		pair, ok := node.(*ast.KeyValueExpr)
		if !ok {
			return true
		}
		key, isName := pair.Key.(*ast.Ident)
		value, isText := pair.Value.(*ast.BasicLit)
		if isName && isText && key.Name == "expression" {
			found = append(found, must(strconv.Unquote(value.Value)))
		}
		return true
	})
	return found
}

func answer(l line) line {
	l = line{Own: l.Own, Expr: l.Expr}
	kind := environment.NewExpressions
	features := dracel.Features{EnableConsumableCapacity: true}
	result := dracel.GetCompiler(features).CompileCELExpression(l.Expr, dracel.Options{EnvType: &kind})
	switch {
	case result.Error == nil:
		l.Max = strconv.FormatUint(result.MaxCost, 10)
	case result.Error.Type == cel.ErrorTypeInvalid:
		l.Invalid = result.Error.Detail
	default:
		l.Internal = result.Error.Error()
	}
	return l
}

func main() {
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	known := map[string]bool{}
	ask := func(l line) {
		if !known[l.Expr] {
			known[l.Expr] = true
			must(0, out.Encode(answer(l)))
		}
	}
	in := bufio.NewScanner(must(os.Open(os.Args[1])))
	in.Buffer(make([]byte, 1<<20), 1<<26)
	var own []line
	for in.Scan() {
		var l line
		if !strings.HasPrefix(in.Text(), "{") {
			fmt.Println(in.Text())
		} else if must(0, json.Unmarshal(in.Bytes(), &l)); l.Own {
			own = append(own, l)
		}
	}
	for _, expr := range upstreams() {
		ask(line{Expr: expr})
	}
	for _, l := range own {
		ask(l)
	}
}
