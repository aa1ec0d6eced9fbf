// Records what upstream's validator of rules, and its compiler, answer to the questions of upstream's own tests.
//
// record.sh puts this file into upstream's package cel, where two functions and a method were renamed to leave their names to
// those here.
package cel

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/warning"
)

// validation is a call of Validate with its answer. What is there by default is left out.
type validation struct {
	Schema   any      `json:"schema"`
	Root     bool     `json:"root,omitempty"`
	Object   any      `json:"object"`
	Old      any      `json:"old,omitempty"`
	Ratchets bool     `json:"ratchets,omitempty"`
	Budget   string   `json:"budget,omitempty"`
	PerCall  string   `json:"perCall,omitempty"`
	Errors   []string `json:"errors,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	Spent    string   `json:"spent"`
}

// compilation is a call of Compile with its answer.
type compilation struct {
	Schema any      `json:"schema"`
	Root   bool     `json:"root,omitempty"`
	Error  string   `json:"error,omitempty"`
	Rules  []result `json:"rules,omitempty"`
}

type result struct {
	Error        string `json:"error,omitempty"`
	UsesOldSelf  bool   `json:"usesOldSelf,omitempty"`
	Cost         string `json:"cost,omitempty"`
	Cardinality  string `json:"cardinality,omitempty"`
	MessageError string `json:"messageError,omitempty"`
	MessageCost  string `json:"messageCost,omitempty"`
	FieldPath    string `json:"fieldPath,omitempty"`
}

var (
	writing sync.Mutex
	limits  sync.Map
)

func write(name string, fact any) {
	line, err := json.Marshal(fact)
	if err != nil {
		fmt.Fprintln(os.Stderr, "no fact:", err)
		return
	}
	writing.Lock()
	defer writing.Unlock()
	file, err := os.OpenFile(os.Getenv("RULE_FACTS")+"/"+name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	if _, err := file.Write(append(line, '\n')); err != nil {
		panic(err)
	}
}

// value is the part of a schema that junctors may hold, too.
func value(out map[string]any, v *schema.ValueValidation, rules schema.ValidationExtensions) {
	set := func(name string, value any, is bool) {
		if is {
			out[name] = value
		}
	}
	set("x-kubernetes-validations", rules.XValidations, len(rules.XValidations) > 0)
	if v == nil {
		return
	}
	set("format", v.Format, v.Format != "")
	set("maximum", v.Maximum, v.Maximum != nil)
	set("minimum", v.Minimum, v.Minimum != nil)
	set("exclusiveMaximum", true, v.ExclusiveMaximum)
	set("exclusiveMinimum", true, v.ExclusiveMinimum)
	set("maxLength", v.MaxLength, v.MaxLength != nil)
	set("minLength", v.MinLength, v.MinLength != nil)
	set("pattern", v.Pattern, v.Pattern != "")
	set("maxItems", v.MaxItems, v.MaxItems != nil)
	set("minItems", v.MinItems, v.MinItems != nil)
	set("multipleOf", v.MultipleOf, v.MultipleOf != nil)
	set("maxProperties", v.MaxProperties, v.MaxProperties != nil)
	set("minProperties", v.MinProperties, v.MinProperties != nil)
	set("required", v.Required, len(v.Required) > 0)
	var values []any
	for _, one := range v.Enum {
		values = append(values, one.Object)
	}
	set("enum", values, len(values) > 0)
	for name, members := range map[string][]schema.NestedValueValidation{"allOf": v.AllOf, "anyOf": v.AnyOf, "oneOf": v.OneOf} {
		var all []any
		for i := range members {
			all = append(all, member(&members[i]))
		}
		set(name, all, len(all) > 0)
	}
	if v.Not != nil {
		out["not"] = member(v.Not)
	}
}

func member(v *schema.NestedValueValidation) map[string]any {
	out := map[string]any{}
	value(out, &v.ValueValidation, v.ValidationExtensions)
	properties := map[string]any{}
	for name, one := range v.Properties {
		properties[name] = member(&one)
	}
	if len(properties) > 0 {
		out["properties"] = properties
	}
	if v.Items != nil {
		out["items"] = member(v.Items)
	}
	if v.AdditionalProperties != nil {
		out["additionalProperties"] = member(v.AdditionalProperties)
	}
	return out
}

// written is a schema as a CustomResourceDefinition writes it.
func written(s *schema.Structural) map[string]any {
	out := map[string]any{}
	set := func(name string, value any, is bool) {
		if is {
			out[name] = value
		}
	}
	value(out, s.ValueValidation, s.ValidationExtensions)
	set("type", s.Type, s.Type != "")
	set("nullable", true, s.Nullable)
	set("default", s.Default.Object, s.Default.Object != nil)
	set("x-kubernetes-preserve-unknown-fields", true, s.XPreserveUnknownFields)
	set("x-kubernetes-embedded-resource", true, s.XEmbeddedResource)
	set("x-kubernetes-int-or-string", true, s.XIntOrString)
	set("x-kubernetes-list-map-keys", s.XListMapKeys, len(s.XListMapKeys) > 0)
	set("x-kubernetes-list-type", s.XListType, s.XListType != nil)
	set("x-kubernetes-map-type", s.XMapType, s.XMapType != nil)
	properties := map[string]any{}
	for name, one := range s.Properties {
		properties[name] = written(&one)
	}
	set("properties", properties, len(properties) > 0)
	if s.Items != nil {
		out["items"] = written(s.Items)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Structural != nil {
		out["additionalProperties"] = written(s.AdditionalProperties.Structural)
	} else if s.AdditionalProperties != nil {
		out["additionalProperties"] = s.AdditionalProperties.Bool
	}
	return out
}

// The name of the type of self, which is another one each time.
var typeName = regexp.MustCompile(`selfType\d+`)

func named(text string) string { return typeName.ReplaceAllString(text, "selfType") }

type warnings struct{ texts []string }

func (w *warnings) AddWarning(_, text string) { w.texts = append(w.texts, text) }

func validator(validationSchema, nodeSchema *schema.Structural, isResourceRoot bool, declType *cel.DeclType, perCallLimit uint64) *Validator {
	made := validatorUnrecorded(validationSchema, nodeSchema, isResourceRoot, declType, perCallLimit)
	if made != nil {
		limits.Store(made, perCallLimit)
	}
	return made
}

func (s *Validator) Validate(ctx context.Context, fldPath *field.Path, sts *schema.Structural, obj, oldObj interface{}, costBudget int64, opts ...Option) (field.ErrorList, int64) {
	heard := &warnings{}
	inner := warning.WithWarningRecorder(ctx, heard)
	errs, left := s.validateUnrecorded(inner, fldPath, sts, obj, oldObj, costBudget, opts...)
	for _, text := range heard.texts {
		warning.AddWarning(ctx, "", text)
	}
	_, ends := ctx.Deadline()
	if s == nil || ends || ctx.Err() != nil || fldPath.String() != "root" {
		return errs, left
	}
	fact := validation{
		Schema: written(s.Schema), Root: s.isResourceRoot, Object: obj, Old: oldObj, Ratchets: len(opts) > 0,
		Warnings: heard.texts, Spent: strconv.FormatInt(costBudget-left, 10),
	}
	if left < 0 {
		fact.Spent = "all"
	}
	if costBudget != 10000000 {
		fact.Budget = strconv.FormatInt(costBudget, 10)
	}
	if limit, ok := limits.Load(s); ok && limit.(uint64) != 1000000 {
		fact.PerCall = strconv.FormatUint(limit.(uint64), 10)
	}
	for _, err := range errs {
		fact.Errors = append(fact.Errors, string(err.Type)+" "+named(err.Error()))
	}
	write("validations.jsonl", fact)
	return errs, left
}

func Compile(s *schema.Structural, declType *cel.DeclType, perCallLimit uint64, baseEnvSet *environment.EnvSet, envLoader EnvLoader) ([]CompilationResult, error) {
	results, err := compileUnrecorded(s, declType, perCallLimit, baseEnvSet, envLoader)
	if _, ok := os.LookupEnv("RULE_FACTS"); !ok || len(s.XValidations) == 0 {
		return results, err
	}
	fact := compilation{Schema: written(s)}
	if err != nil {
		fact.Error = err.Error()
	} else if _, ok := s.Properties["metadata"]; !ok {
		_, fact.Root = declType.Fields["metadata"]
	}
	number := func(n uint64) string {
		if n == 0 {
			return ""
		}
		return strconv.FormatUint(n, 10)
	}
	for _, one := range results {
		row := result{
			UsesOldSelf: one.UsesOldSelf, Cost: number(one.MaxCost), Cardinality: number(one.MaxCardinality),
			MessageCost: number(one.MessageExpressionMaxCost), FieldPath: one.NormalizedRuleFieldPath,
		}
		if one.Error != nil {
			row.Error = named(one.Error.Detail)
		}
		if one.MessageExpressionError != nil {
			row.MessageError = named(one.MessageExpressionError.Detail)
		}
		fact.Rules = append(fact.Rules, row)
	}
	write("compilations.jsonl", fact)
	return results, err
}
