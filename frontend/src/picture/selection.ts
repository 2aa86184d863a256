/** What a name on a panel selects on the page: a token, a head, a layer or a step. */

import type { Mark } from '../api'
import { isMessage, type Text } from '../messages/message'

export interface Selection { token?: number; layer?: number; head?: number; step?: string }

/** Plain names: `12 ·bank` is a token, `L3` a step or a layer, `L3 attn` or `L3 mlp` a half-layer, `L3.H1` a head. A message is read by its parameters. */
export function selectionOf(name: Text): Selection {
  if (isMessage(name)) return selectionOfParameters(name.parameters ?? {})
  const token = /^(\d+) \S/.exec(name)
  if (token) return { token: Number(token[1]) }
  const head = /^L(\d+)\.?H(\d+)$/.exec(name)
  if (head) return { layer: Number(head[1]), head: Number(head[2]) }
  const halfLayer = /^L(\d+) (attn|mlp)$/.exec(name)
  if (halfLayer) return { layer: Number(halfLayer[1]), step: `L${halfLayer[1]}.resid_${halfLayer[2] === 'attn' ? 'mid' : 'post'}` }
  const layer = /^L(\d+)$/.exec(name)
  if (layer) return { layer: Number(layer[1]), step: `L${layer[1]}.resid_post` }
  return name === 'embed' ? { step: 'embed' } : {}
}

function selectionOfParameters({ position, token_index: tokenIndex = position, layer, head, step }: Record<string, unknown>): Selection {
  if (typeof tokenIndex === 'number') return { token: tokenIndex }
  return {
    ...(typeof layer === 'number' ? { layer } : {}), ...(typeof head === 'number' ? { head } : {}), ...(typeof step === 'string' ? { step } : {}),
  }
}

/** A line or a shape selects what its tip is about, else what its name says. */
export function markSelection(mark: Mark): Selection {
  if (mark.mark === 'cells' || mark.mark === 'label') return {}
  const byTip = isMessage(mark.tip) ? selectionOf(mark.tip) : {}
  return byTip.token === undefined ? selectionOf(mark.name) : byTip
}
