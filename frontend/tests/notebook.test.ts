import { expect, it } from 'vitest'

import { Held, sentIn } from '../src/notebook/held'
import { inShadow, isDark } from '../src/notebook/look'
import { envelope } from './envelope'

const bytes = (text: string) => new TextEncoder().encode(text)

it('files come out of an envelope as they went in, wherever it lies in its buffer', async () => {
  const files = [{ name: 'api/state.json', dtype: 'uint8', shape: [2], data: bytes('{}') }, { name: 'api/traces/a/points.raw.bin', dtype: 'uint8', shape: [3], data: bytes('abc') }]
  const whole = new Uint8Array(envelope({ trace: 'a' }, files))
  const later = new Uint8Array(whole.length + 5)
  later.set(whole, 5)
  const sent = sentIn(new DataView(later.buffer, 5))
  expect([sent.trace, sent.picture, Object.keys(sent.files)]).toEqual(['a', null, ['api/state.json', 'api/traces/a/points.raw.bin']])
  const held = new Held(sent.files, () => 'not here')
  expect(new TextDecoder().decode(await held.read('api/traces/a/points', { axes: 'all', space: 'raw' }, 'bin'))).toBe('abc')
  await expect(held.read('api/models', {}, 'json')).rejects.toThrow('not here')
  await expect(held.ask()).rejects.toThrow('not here')
})

it('rules of the page are rules of the widget alone', () => {
  expect(inShadow(":root{--a:1}:root[data-theme=dark]{--a:2}body{margin:0}.body-cell{x:1}a,body p{y:1}")).toBe(
    ":host{--a:1}:host([data-theme=dark]){--a:2}.page{margin:0}.body-cell{x:1}a,.page p{y:1}")
})

it('what lies behind is dark, light or not seen', () => {
  expect(['rgb(17, 17, 17)', 'rgb(255, 255, 255)', 'rgba(0, 0, 0, 0)', 'rgb(30 30 30 / 1)', 'transparent'].map(isDark)).toEqual([true, false, null, true, null])
})
