// Records what upstream refuses in the schemas of its own tests of CustomResourceDefinitions.
//
// record.sh puts this file into upstream's package validation, where a function was renamed to leave its name to the one here.
package validation

import (
	"context"
	"encoding/json"
	"os"
	"regexp"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel/environment"
)

// definition is a schema with the errors of a write that has it for the first time.
type definition struct {
	Schema    any      `json:"schema"`
	Status    bool     `json:"status,omitempty"`
	Unchanged bool     `json:"unchanged,omitempty"`
	Errors    []string `json:"errors,omitempty"`
}

var writing sync.Mutex

// The name of the type of self, which is another one each time.
var typeName = regexp.MustCompile(`selfType\d+`)

func validateCustomResourceDefinitionValidation(ctx context.Context, of *apiextensions.CustomResourceValidation, hasStatus bool, opts validationOptions, fldPath *field.Path) (errs field.ErrorList) {
	errs = validateUnrecorded(ctx, of, hasStatus, opts, fldPath)
	// Some tests have defaults that no decoder gives.
	defer func() { recover() }()
	if of == nil || of.OpenAPIV3Schema == nil {
		return errs
	}
	v1 := &apiextensionsv1.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_apiextensions_JSONSchemaProps_To_v1_JSONSchemaProps(of.OpenAPIV3Schema, v1, nil); err != nil {
		return errs
	}
	fact := definition{Schema: v1, Status: hasStatus, Unchanged: opts.suppressPerExpressionCost}
	strict := validationOptions{
		allowDefaults: true, requireRecognizedConversionReviewVersion: true, requireOpenAPISchema: true,
		requireValidPropertyType: true, requireStructuralSchema: true, requirePrunedDefaults: true, requireAtomicSetType: true,
		requireMapListKeysMapSetValidation: true, suppressPerExpressionCost: opts.suppressPerExpressionCost,
		celEnvironmentSet: environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()),
	}
	for _, err := range validateUnrecorded(ctx, of, hasStatus, strict, field.NewPath("schema")) {
		fact.Errors = append(fact.Errors, string(err.Type)+" "+typeName.ReplaceAllString(err.Error(), "selfType"))
	}
	line, err := json.Marshal(fact)
	if err != nil {
		return errs
	}
	writing.Lock()
	defer writing.Unlock()
	file, err := os.OpenFile(os.Getenv("RULE_FACTS")+"/definitions.jsonl", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	if _, err := file.Write(append(line, '\n')); err != nil {
		panic(err)
	}
	return errs
}
