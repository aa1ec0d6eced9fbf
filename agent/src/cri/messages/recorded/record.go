// Writes the bytes of messages.tsv again, with the types that Kubernetes' own clients of CRI are generated from. To be built
// where `k8s.io/cri-api` and `google.golang.org/protobuf` are to be had, such as a checkout of Kubernetes:
//
//	go run record.go < messages.tsv > new.tsv
package main

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	_ "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		columns := strings.Split(lines.Text(), "\t")
		if strings.HasPrefix(columns[0], "#") {
			fmt.Println(lines.Text())
			continue
		}
		kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName("runtime.v1." + columns[0]))
		check(err)
		message := kind.New().Interface()
		check(protojson.Unmarshal([]byte(columns[1]), message))
		bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
		check(err)
		fmt.Printf("%s\t%s\t%s\n", columns[0], columns[1], hex.EncodeToString(bytes))
	}
	check(lines.Err())
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
